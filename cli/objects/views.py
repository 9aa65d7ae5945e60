"""Objects of the API as tables read them, by msgspec: pydantic, which `schemas.api` takes, is slow to import.

`make reference` writes their shapes from `schemas.api`. Verbs that need methods of views use `parse`.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from cli.transport.paths import parse

_FILE: Final = Path(__file__).with_name("view_shapes.json")
_SCALARS: Final[Mapping[str, Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "any": Any,
    "moment": Annotated[datetime, msgspec.Meta(tz=True)],
}  # fmt: skip


def read_view(name: str, raw: Any) -> Any:
    """A JSON object of the API as the view of this name; see `parse`."""
    return parse(_struct(name), raw)


@cache
def _shapes() -> Mapping[str, Mapping[str, list[Any]]]:
    shapes: Mapping[str, Mapping[str, list[Any]]] = msgspec.json.decode(_FILE.read_bytes())
    return shapes


@cache
def _struct(name: str) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field, (kind, *default) in _shapes()[name].items():
        of = _type(kind)
        fields.append((field, of, _default(of, default[0])) if default else (field, of))
    return msgspec.defstruct(name, fields, kw_only=True)


def _default(of: Any, value: Any) -> Any:
    """A default of this type. Objects and lists are made for each view."""
    if isinstance(value, list | dict):
        return msgspec.field(default_factory=partial(msgspec.convert, value, of))
    return value


def _type(kind: str) -> Any:
    match kind[0]:
        case "?":
            return _type(kind[1:]) | None
        case "@":
            return _struct(kind[1:])
        case "[":
            return list[_type(kind[1:])]  # type: ignore[misc]
        case "(":
            return tuple[_type(kind[1:]), ...]  # type: ignore[misc]
        case "{":
            return dict[str, _type(kind[1:])]  # type: ignore[misc]
        case _:
            return _SCALARS[kind]
