"""Pages of a list that is read or worked out as a whole. Without `limit` a page holds all that there is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from controller.api.body import json_response
from controller.api.parameters import parameters_of, whole_number
from controller.api.route import Query
from controller.store.views.paging import MAX_LIMIT, open_cursor, seal
from schemas.api.view import View

T = TypeVar("T")
WHOLE_PAGING: Final = (
    Query("limit", f"objects per page, 1 to {MAX_LIMIT} (default: all)", "integer"),
    Query("cursor", "`next` of the previous page"),
)


def page_of_whole(
    items: Sequence[T], parameters: Mapping[str, str], name_of: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """The page that `limit` and `cursor` ask for, and the cursor of the next one; None: this is the last one.

    A page begins behind the object with which the one before ended; where that one is gone, at its place.

    Args:
        items: all of them, in order.
        parameters: of the request.
        name_of: what an object of the list is known by in it.

    Raises:
        ApiError: 400, an invalid limit.
        BadCursorError: the cursor is of another list.
    """
    limit = whole_number(parameters, "limit", low=1, high=MAX_LIMIT)
    last = open_cursor(parameters.get("cursor"), (str, int))
    begin = 0
    if last is not None:
        name, place = last
        begin = next((index + 1 for index, item in enumerate(items) if name_of(item) == name), max(0, place))
    shown = list(items[begin:] if limit is None else items[begin : begin + limit])
    end = begin + len(shown)
    return shown, seal((name_of(shown[-1]), end - 1)) if shown and end < len(items) else None


def whole_list(request: web.Request, found: View, name_of: Callable[[Any], str]) -> web.Response:
    """The page of an answer that has all its `items`."""
    items, following = page_of_whole(found.items, parameters_of(request), name_of)  # type: ignore[attr-defined]
    return json_response(msgspec.structs.replace(found, items=items, next=following))


def is_paged(request: web.Request) -> bool:
    """Whether the request asks for a part of a list."""
    return any(query.name in request.query for query in WHOLE_PAGING)
