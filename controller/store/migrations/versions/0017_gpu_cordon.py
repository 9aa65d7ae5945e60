"""An operator's cordon of one GPU, and how often one dismissed what its driver had reported."""

from controller.store.migrations.sql import run_sql

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
