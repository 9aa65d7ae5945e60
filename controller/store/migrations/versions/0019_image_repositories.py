"""Digests of images with the repository that each is of."""

from controller.store.migrations.sql import run_sql

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
