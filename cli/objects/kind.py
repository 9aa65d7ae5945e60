"""A kind of objects, and their table. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cli.errors import UsageError
from cli.printing.table import TEXTS, Table
from cli.text.gpu_names import GpuNames

Cell = Callable[[Any, datetime], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    title: str
    cell: Cell  # its text for an object, at a time
    wide: bool = False  # shown with `-o wide` only
    uuids: bool = False  # GPUs have their UUID here, not their name
    rank: int = 0  # on a narrow terminal the column with the highest rank leaves first; 0: it stays


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object."""

    singular: str
    plural: str  # also its path in the API
    view: str  # name of the view of an object, in `schemas.api`
    columns: tuple[Column, ...]
    by_name: bool = True  # the API can return an object by name; else it is searched in the list

    @property
    def words(self) -> tuple[str, str]:
        return self.singular, self.plural


def bare_name(kind: Kind, text: str) -> str:
    """The name in a text such as `chat` or `deployment/chat`. Raises `UsageError` where it names another kind."""
    word, slash, name = text.partition("/")
    if name and word.lower() in kind.words:
        return name
    if slash and kind.by_name:  # names of keys may have slashes
        raise UsageError(f"{text!r} is not the name of a {kind.singular}; write NAME or {kind.singular}/NAME")
    return text


def object_key(kind: Kind, raw: Mapping[str, Any]) -> str:
    """The object as events refer to it: by uid, since names can be reused."""
    return f"{kind.singular}:{raw['uid']}"


def table_of(
    kind: Kind, objects: Sequence[Any], now: datetime, *, wide: bool = False, gpus: GpuNames | None = None
) -> Table:
    """`gpus`: names of GPUs, which cells have in the place of UUIDs; with `wide` only cells without sentences."""
    columns = [column for column in kind.columns if wide or not column.wide]
    names = gpus or GpuNames()

    def text_of(column: Column, view: Any) -> str:
        text = column.cell(view, now)
        if column.uuids or (wide and column.title in TEXTS):
            return text
        return names.in_text(text) if column.title in TEXTS else names.in_cell(text)

    rows = [[text_of(column, view) for column in columns] for view in objects]
    leaving = sorted((column for column in columns if column.rank), key=lambda column: -column.rank)
    return Table([column.title for column in columns], rows, [column.title for column in leaving])
