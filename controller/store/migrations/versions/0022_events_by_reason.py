"""Events are found by their reason."""

from controller.store.migrations.sql import run_sql

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
