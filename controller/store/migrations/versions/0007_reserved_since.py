"""Since when capacity is reserved for a pending instance that servers hold."""

from controller.store.migrations.sql import run_sql

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
