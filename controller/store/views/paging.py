"""Pages of lists: cursors, the time of a read, and long reads in batches."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import orjson

from controller.store.core.database import Reader
from schemas.api.envelopes import Page

MAX_LIMIT: Final = 1000
V = TypeVar("V")
BATCH: Final = 100  # some 5 to 10 ms


class BadCursorError(ValueError):
    """A cursor that was not issued for this list."""


def seal(key: Sequence[str | int]) -> str:
    """The cursor after the row with this sort key."""
    return base64.urlsafe_b64encode(orjson.dumps(list(key))).decode().rstrip("=")


def open_cursor(cursor: str | None, kinds: Sequence[type]) -> list[Any] | None:
    """The sort key in a cursor; None for the first page. Raises BadCursorError if its values are not of these kinds."""
    if not cursor:
        return None
    try:
        key = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError) as error:
        raise BadCursorError("cursor: not issued for this list; omit it to start from the beginning") from error
    if not isinstance(key, list) or [type(part) for part in key] != list(kinds):
        raise BadCursorError("cursor: not issued for this list; omit it to start from the beginning")
    return key


def page_of(items: Sequence[V], limit: int, key: Callable[[V], Sequence[str | int]]) -> Page[V]:
    """A page from `limit` + 1 rows: the extra row shows that there are more."""
    more = len(items) > limit
    shown = list(items[:limit])
    return Page[V](items=shown, next=seal(key(shown[-1])) if more and shown else None)


async def read_time(connection: Reader) -> datetime:
    """The start of this connection's transaction."""
    (row,) = await connection.fetch("select now() as at")
    at: datetime = row["at"]
    return at


async def in_batches(rows: Sequence[Any], views_of: Callable[[Sequence[Any]], Awaitable[list[V]]]) -> list[V]:
    """Makes the views of these rows, yielding to the event loop."""
    views: list[V] = []
    for start in range(0, len(rows), BATCH):
        views += await views_of(rows[start : start + BATCH])
        await asyncio.sleep(0)
    return views
