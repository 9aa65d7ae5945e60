"""A ledger that lost commits, as after a restore, goes above what agents have seen."""

from controller.store.migrations.sql import run_sql

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
