"""The ledger: deployments to claims, with gangs, epochs and sessions from the start.

Revision ID: 0001
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates everything."""
    for statement in Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split("\n--;;\n"):
        op.execute(statement)


def downgrade() -> None:
    """There is nothing before the first revision; drop the database instead."""
    raise RuntimeError("revision 0001 cannot be undone; drop the database instead")
