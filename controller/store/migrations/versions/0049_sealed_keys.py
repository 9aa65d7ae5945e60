"""The secrets of agents' proxies and the key of receipts are sealed."""

from controller.store.migrations.sql import run_sql

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
