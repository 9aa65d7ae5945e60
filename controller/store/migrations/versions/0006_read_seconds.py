"""Seconds that were read, by sample, and sampling periods that could not be taken."""

from controller.store.migrations.sql import run_sql

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
