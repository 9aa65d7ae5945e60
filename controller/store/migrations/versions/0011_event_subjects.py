"""Events' subjects at a lower cost."""

from controller.store.migrations.sql import run_sql

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
