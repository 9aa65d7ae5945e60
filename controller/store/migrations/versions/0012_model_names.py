"""Names under which requests ask for deployments."""

from controller.store.migrations.sql import run_sql

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
