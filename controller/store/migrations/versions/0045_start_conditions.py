"""When a secret was last set or scoped, and at which port the ranks of a gang meet."""

from controller.store.migrations.sql import run_sql

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
