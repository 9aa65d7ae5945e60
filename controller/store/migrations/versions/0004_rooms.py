"""Moves: the rooms that they make.

Revision ID: 0004
"""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column."""
    for statement in Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split("\n--;;\n"):
        op.execute(statement)


def downgrade() -> None:
    """Moves that are under way would make room for nobody in particular; restore a backup instead."""
    raise RuntimeError("revision 0004 cannot be undone; restore a backup instead")
