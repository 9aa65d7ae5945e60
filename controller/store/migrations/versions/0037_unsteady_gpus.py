"""GPUs that are lost again and again: how often, and until when they are not used."""

from controller.store.migrations.sql import run_sql

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
