"""Rollouts that grow on full hosts: how many replicas each keeps up."""

from controller.store.migrations.sql import run_sql

revision = "0040"
down_revision = "0037"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
