"""Sessions of browsers."""

from controller.store.migrations.sql import run_sql

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
