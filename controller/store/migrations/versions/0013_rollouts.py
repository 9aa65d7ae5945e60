"""Rollouts, the history of revisions, and what gateways count by revision."""

from controller.store.migrations.sql import run_sql

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
