"""Workers' conditions and protocol; events with their actor, request and subjects."""

from controller.store.migrations.sql import run_sql

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
