"""Restarts on a user's request."""

from controller.store.migrations.sql import run_sql

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
