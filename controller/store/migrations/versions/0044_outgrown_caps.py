"""Since when the autoscaler has wanted more than a policy's cap, and leaps of the database's clock."""

from controller.store.migrations.sql import run_sql

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
