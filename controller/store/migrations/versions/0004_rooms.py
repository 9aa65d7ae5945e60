"""Relocations: the places that they free for pending instances."""

from controller.store.migrations.sql import run_sql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
