"""The places that victims of a preemption leave, each promised to its preemptor."""

from controller.store.migrations.sql import run_sql

revision = "0039"
down_revision = "0037"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
