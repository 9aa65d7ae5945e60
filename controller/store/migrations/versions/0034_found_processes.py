"""Processes that agents found after a loss of commits, and the key of their receipts."""

from controller.store.migrations.sql import run_sql

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
