"""Drains that start the replacement first: until when they wait, and the relocations that they begin."""

from controller.store.migrations.sql import run_sql

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
