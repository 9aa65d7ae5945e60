"""How many replicas a rollout keeps up on full hosts; a stored `strategy: pack` counts as not written."""

from controller.store.migrations.sql import run_sql

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
