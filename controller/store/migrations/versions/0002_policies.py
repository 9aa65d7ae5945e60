"""Utilization policies: samples, verdicts, actions, and the history behind reports."""

from controller.store.migrations.sql import run_sql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
