"""What was changed, by which key and from where, and what came of it."""

from controller.store.migrations.sql import run_sql

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
