"""When a secret was last set or scoped, so that what lacked it starts as soon as it is there."""

from controller.store.migrations.sql import run_sql

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
