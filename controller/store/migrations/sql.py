"""Runs a revision's SQL: the file beside its module, of the same name."""

from pathlib import Path
from typing import Final

from alembic import op

_SEPARATOR: Final = "\n--;;\n"


def run_sql(revision_file: str) -> None:
    """Executes the statements of `<revision>.sql`, in the migration's transaction."""
    text = Path(revision_file).with_suffix(".sql").read_text(encoding="utf-8")
    for statement in text.split(_SEPARATOR):
        op.execute(statement)
