"""Objects and views from rows whose columns have the names of their fields."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from schemas.api.view import View, from_plain

T = TypeVar("T")
V = TypeVar("V", bound=View)
Row = Mapping[str, Any]


def row_mapper(cls: type[T]) -> Callable[[Row], T]:
    """A function that builds `cls`, a dataclass, from a row with a column for each of its fields."""
    values = itemgetter(*(field.name for field in fields(cls)))  # type: ignore[arg-type]  # a dataclass by contract
    return lambda row: cls(*values(row))


def view_of(view: type[V], row: Row, /, **given: Any) -> V:
    """A view of a row: its fields are the columns of their names, but for those that are given. UUIDs become text."""
    values = {name: row[name] for name in view.__struct_fields__ if name in row} | given
    return from_plain(view, {name: str(one) if isinstance(one, UUID) else one for name, one in values.items()})
