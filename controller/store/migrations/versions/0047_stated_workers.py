"""What a join token or an administrator states of a worker, apart from what its host says of itself."""

from controller.store.migrations.sql import run_sql

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
