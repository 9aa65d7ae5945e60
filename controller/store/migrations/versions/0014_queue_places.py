"""Places in models' queues, leased to gateways."""

from controller.store.migrations.sql import run_sql

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
