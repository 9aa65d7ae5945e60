"""Objects from rows whose columns have the names of the objects' fields."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import itemgetter
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")
Row = Mapping[str, Any]


def row_mapper(cls: type[T]) -> Callable[[Row], T]:
    """A function that builds `cls`, a dataclass, from a row with a column for each of its fields."""
    values = itemgetter(*(field.name for field in fields(cls)))  # type: ignore[arg-type]  # a dataclass by contract
    return lambda row: cls(*values(row))


def columns_of(model: type[BaseModel], row: Row) -> dict[str, Any]:
    """The values of a row's columns that have the name of a field of `model`."""
    columns = set(row.keys())
    return {name: row[name] for name in model.model_fields if name in columns}
