"""Keys say when they were used last, and which key takes their place."""

from controller.store.migrations.sql import run_sql

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
