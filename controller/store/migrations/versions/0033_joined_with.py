"""The token with which a worker has joined."""

from controller.store.migrations.sql import run_sql

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
