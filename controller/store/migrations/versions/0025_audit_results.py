"""The result of the last audit."""

from controller.store.migrations.sql import run_sql

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
