"""MIG slices with their parent, and what agents read of GPUs for operators."""

from controller.store.migrations.sql import run_sql

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
