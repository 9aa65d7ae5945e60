"""The landed revisions: each is a file `versions/<id>_<name>.sql`, in the order of their ids.

Alembic expects a Python module for each revision. Ours contain SQL alone, so the modules are made here.
A downgrade is not supported: restore a backup instead.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from alembic.runtime.migration import MigrationContext, MigrationStep
from alembic.script import Script
from alembic.script.revision import RevisionMap
from sqlalchemy import Connection, text

_SEPARATOR: Final = "\n--;;\n"


def run_scripts(connection: Connection, files: Mapping[str, Path], last: str) -> None:
    """Applies the missing ones of these files up to the last ("head": all), in the transaction of the connection."""
    revisions = RevisionMap(lambda: _scripts(connection, files))

    def missing(current: tuple[str, ...], _context: MigrationContext) -> list[MigrationStep]:
        scripts = [s for s in revisions.iterate_revisions(last, current, implicit_base=True) if isinstance(s, Script)]
        return [MigrationStep.upgrade_from_script(revisions, script) for script in reversed(scripts)]

    context = MigrationContext.configure(connection, opts={"fn": missing})
    with context.begin_transaction():
        context.run_migrations()


class _Module(ModuleType):
    """A revision's module, as far as alembic reads it."""

    def __init__(self, path: Path, down_revision: str | None, connection: Connection) -> None:
        super().__init__(path.stem)
        self.down_revision = down_revision
        self._path, self._connection = path, connection

    def upgrade(self) -> None:
        for statement in self._path.read_text(encoding="utf-8").split(_SEPARATOR):
            self._connection.execute(text(statement))


def _scripts(connection: Connection, files: Mapping[str, Path]) -> Iterator[Script]:
    below = None
    for revision, path in files.items():
        yield Script(_Module(path, below, connection), revision, path)
        below = revision
