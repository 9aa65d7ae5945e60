"""Objects of the API, for tables. They are read by `view_shapes.json` and not by pydantic, which is slow to import.

`make reference` writes that file from `schemas.api`. Verbs that need methods of views use `parse`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from cli.errors import CliError
from schemas.version import __version__

_FILE: Final = Path(__file__).with_name("view_shapes.json")
_WORDS: Final = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}

_Shape = Mapping[str, list[Any]]


class _MismatchError(Exception):
    """What is wrong, and the way to the field, innermost first."""

    def __init__(self, wrong: str) -> None:
        super().__init__(wrong)
        self.way: list[str] = []


def read_view(name: str, raw: Mapping[str, Any]) -> Any:
    """A JSON object of the API with the fields of the view of this name as attributes, moments as datetimes.

    Unknown keys are ignored, missing ones get their defaults: the server may be newer or older.

    Raises:
        CliError: the object does not match the view.
    """
    try:
        return _object(name, raw)
    except _MismatchError as mismatch:
        where = ".".join(reversed(mismatch.way))
        raise CliError(
            f"cannot read the {name} of the server ({where}: {mismatch}); "
            f"use the gpuward version of the server (this is {__version__})"
        ) from None


@cache
def _shapes() -> Mapping[str, _Shape]:
    shapes: Mapping[str, _Shape] = json.loads(_FILE.read_text(encoding="utf-8"))
    return shapes


def _object(name: str, raw: Any) -> SimpleNamespace:
    if not isinstance(raw, dict):
        raise _MismatchError("must be an object")
    fields: dict[str, Any] = {}
    for field, (kind, *default) in _shapes()[name].items():
        try:
            fields[field] = _value(kind, raw[field] if field in raw else _default(default))
        except _MismatchError as mismatch:
            mismatch.way.append(field)
            raise
    return SimpleNamespace(**fields)


def _default(default: list[Any]) -> Any:
    if not default:
        raise _MismatchError("is missing")
    return default[0]


def _value(kind: str, raw: Any) -> Any:
    read = _READERS.get(kind[0])
    return _scalar(kind, raw) if read is None else read(kind[1:], raw)


def _items(kind: str, raw: Any) -> list[Any]:
    if not isinstance(raw, list):
        raise _MismatchError("must be a list")
    return [_named(kind, str(index), item) for index, item in enumerate(raw)]


def _entries(kind: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _MismatchError("must be an object")
    return {name: _named(kind, name, item) for name, item in raw.items()}


def _named(kind: str, name: str, raw: Any) -> Any:
    try:
        return _value(kind, raw)
    except _MismatchError as mismatch:
        mismatch.way.append(name)
        raise


_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "?": lambda kind, raw: None if raw is None else _value(kind, raw),
    "@": _object,
    "[": _items,
    "(": lambda kind, raw: tuple(_items(kind, raw)),
    "{": _entries,
}


def _scalar(kind: str, raw: Any) -> Any:
    if kind == "any":
        return raw
    if kind == "moment":
        return _moment(raw)
    if kind == "float" and isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    wanted = {"str": str, "int": int, "bool": bool}.get(kind)
    if wanted is None or type(raw) is not wanted:
        raise _MismatchError(f"must be {_WORDS[kind]}")
    return raw


def _moment(raw: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(raw)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _MismatchError("must be a moment with its time zone, such as 2026-01-31T12:00:00Z")
    return moment
