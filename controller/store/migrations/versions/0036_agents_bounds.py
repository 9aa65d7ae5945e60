"""Bounds to what an agent alone can cause: events, and terms that it names. The secret of its proxy rotates."""

from controller.store.migrations.sql import run_sql

revision = "0036"
down_revision = "0034"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
