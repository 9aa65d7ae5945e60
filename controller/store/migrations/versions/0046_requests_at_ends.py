"""Requests that were in flight when an engine ended: one that crashes engines is refused for a time."""

from controller.store.migrations.sql import run_sql

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
