"""The ledger: deployments, instances, workers, devices and claims, with gangs, epochs and sessions."""

from controller.store.migrations.sql import run_sql

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
