"""Utilization policies: what is judged, by which samples, what was done, and the history behind reports.

Revision ID: 0002
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates everything."""
    for statement in Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split("\n--;;\n"):
        op.execute(statement)


def downgrade() -> None:
    """Samples and history would be lost; restore a backup instead."""
    raise RuntimeError("revision 0002 cannot be undone; restore a backup instead")
