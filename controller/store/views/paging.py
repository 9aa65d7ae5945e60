"""Cursors: where the next page of a list begins, sealed into a text that clients only hand back."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import asyncpg
import orjson

from schemas.api.envelopes import Page

MAX_LIMIT: Final = 1000
V = TypeVar("V")


class Reader(Protocol):
    """What the views need of a connection."""

    async def fetch(self, query: str, *args: Any) -> "list[asyncpg.Record]":
        """Runs a query."""


class BadCursorError(ValueError):
    """A cursor that this list did not give out."""


def seal(key: Sequence[str | int]) -> str:
    """The cursor after the row with this sort key."""
    return base64.urlsafe_b64encode(orjson.dumps(list(key))).decode().rstrip("=")


def open_cursor(cursor: str | None, kinds: Sequence[type]) -> list[Any] | None:
    """The sort key that a cursor holds; None for the first page.

    Raises:
        BadCursorError: if it holds none of these kinds.
    """
    if not cursor:
        return None
    try:
        key = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise BadCursorError("cursor: is none that this list gave out; leave it out to begin anew") from error
    if not isinstance(key, list) or [type(part) for part in key] != list(kinds):
        raise BadCursorError("cursor: belongs to another list; leave it out to begin anew")
    return key


def page_of(items: Sequence[V], limit: int, key: Callable[[V], Sequence[str | int]]) -> Page[V]:
    """A page from `limit` + 1 rows read: the one too many says that there is more."""
    more = len(items) > limit
    shown = list(items[:limit])
    return Page[V](items=shown, next=seal(key(shown[-1])) if more and shown else None)
