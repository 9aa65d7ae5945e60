"""The commits of a revision's models on the hub."""

from controller.store.migrations.sql import run_sql

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
