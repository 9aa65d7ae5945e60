"""Placement: vendors, reserved and measured use of devices; engine and layout chosen for an instance."""

from controller.store.migrations.sql import run_sql

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
