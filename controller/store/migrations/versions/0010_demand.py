"""Gateways, their demand, wakes, and the autoscaler's number."""

from controller.store.migrations.sql import run_sql

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
