"""Events' subjects, and a quarantine of workers."""

from controller.store.migrations.sql import run_sql

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
