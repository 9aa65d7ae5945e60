"""Limits of keys, their shares at gateways, and what keys used."""

from controller.store.migrations.sql import run_sql

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Runs the file beside this one. A downgrade is not supported: restore a backup instead."""
    run_sql(__file__)
