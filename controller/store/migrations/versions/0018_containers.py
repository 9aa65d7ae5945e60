"""Containers: workers' runtimes, and the digests of images."""

from controller.store.migrations.sql import run_sql

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
