"""Requests of each replica, as agents and gateways see them."""

from controller.store.migrations.sql import run_sql

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
