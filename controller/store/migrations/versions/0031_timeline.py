"""A failover of PostgreSQL is noticed by its timeline."""

from controller.store.migrations.sql import run_sql

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
