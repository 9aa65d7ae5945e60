"""Certificates of agents' proxies, and credentials that rotate."""

from controller.store.migrations.sql import run_sql

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
