"""Placement: vendors, reserves and measured use of devices; engine and layout as chosen for an instance.

Revision ID: 0003
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns."""
    for statement in Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split("\n--;;\n"):
        op.execute(statement)


def downgrade() -> None:
    """What was chosen for running instances would be lost; restore a backup instead."""
    raise RuntimeError("revision 0003 cannot be undone; restore a backup instead")
