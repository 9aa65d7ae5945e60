"""A kind of objects, and the table of some of them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cli.errors import UsageError
from cli.printing.table import Table

Cell = Callable[[Any, datetime], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and its cell for an object at a time.

    Attributes:
        wide: it is shown with `-o wide` only.
        rank: where a terminal is narrow, the column with the highest one leaves first; 0: it stays.
    """

    title: str
    cell: Cell
    wide: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object.

    Attributes:
        singular: its name for one object, such as `worker`.
        plural: its name for several; also its path in the API.
        view: the name of the view of one object, in `schemas.api`.
        columns: of its table.
        by_name: whether the API can return one object by name; if not, it is searched in the list.
    """

    singular: str
    plural: str
    view: str
    columns: tuple[Column, ...]
    by_name: bool = True

    @property
    def words(self) -> tuple[str, str]:
        """What it is called."""
        return self.singular, self.plural


def bare_name(kind: Kind, text: str) -> str:
    """The name in a text such as `chat` or `deployment/chat`.

    Raises:
        UsageError: the text names another kind.
    """
    word, slash, name = text.partition("/")
    if name and word.lower() in kind.words:
        return name
    if slash and kind.by_name:  # the names of others, such as keys, may have slashes
        raise UsageError(f"{text!r} is not the name of a {kind.singular}; write NAME or {kind.singular}/NAME")
    return text


def object_key(kind: Kind, raw: Mapping[str, Any]) -> str:
    """An object as events refer to it: by uid, since names can be reused."""
    return f"{kind.singular}:{raw['uid']}"


def table_of(kind: Kind, objects: Sequence[Any], now: datetime, *, wide: bool = False) -> Table:
    """The table of objects."""
    columns = [column for column in kind.columns if wide or not column.wide]
    rows = [[column.cell(view, now) for column in columns] for view in objects]
    leaving = sorted((column for column in columns if column.rank), key=lambda column: -column.rank)
    return Table([column.title for column in columns], rows, [column.title for column in leaving])
