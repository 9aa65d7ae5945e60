"""Seals over batches of the audit log: what is removed from it shows."""

from controller.store.migrations.sql import run_sql

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
