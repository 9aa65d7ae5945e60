"""Read routes that resources share: a page of rows, one object, and pages of a list that exists in memory."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.parameters import ReadOne, integer, page_limit, parameters_of
from controller.api.route import PAGING, Access, Query, Route
from controller.live.database_full import while_full
from controller.store.views.paging import MAX_LIMIT, open_cursor, seal
from schemas.api.envelopes import Page
from schemas.api.view import View

ReadPage: TypeAlias = Callable[..., Awaitable[Page[Any]]]  # (connection, *, limit, cursor, one keyword per filter)
T = TypeVar("T")
COMPLETE_PAGING: Final = (
    Query("limit", f"objects per page, 1 to {MAX_LIMIT} (default: all)", "integer"),
    Query("cursor", "`next` of the previous page"),
)


def list_route(
    path: str, read_page: ReadPage, summary: str, page: type[View], filters: tuple[Query, ...] = ()
) -> Route:
    """`GET path`: one page of rows. Each filter is passed to `read_page` by its name."""
    names = [query.name for query in filters]

    async def handler(request: web.Request) -> web.Response:
        parameters = parameters_of(request)
        limit, cursor = page_limit(parameters), parameters.get("cursor")
        chosen = {name: parameters.get(name) for name in names}
        database = request.app[CONTEXT].database
        async with database.snapshot() as connection:
            rows = await read_page(connection, limit=limit, cursor=cursor, **chosen)
        if database.space.full:
            rows = msgspec.structs.replace(rows, items=[while_full(view, full=True) for view in rows.items])
        return json_response(rows)

    return Route("GET", path, handler, Access.READ, summary, _tag(path), page, query=(*PAGING, *filters))


def read_route(path: str, variable: str, read_one: ReadOne, summary: str, view: type[View]) -> Route:
    """`GET path/{variable}`: one object."""

    async def handler(request: web.Request) -> web.Response:
        database = request.app[CONTEXT].database
        async with database.snapshot() as connection:
            view = await read_one(connection, request.match_info[variable])
        return json_response(while_full(view, full=database.space.full))

    return Route("GET", f"{path}/{{{variable}}}", handler, Access.READ, summary, _tag(path), view)


def _tag(path: str) -> str:
    return path.rpartition("/")[2]


def page_of(
    items: Sequence[T], parameters: Mapping[str, str], name_of: Callable[[T], str]
) -> tuple[list[T], str | None]:
    """Returns the page that `limit` and `cursor` select, and the cursor of the next page; None for the last page.

    A page starts after the last object of the page before. If that object is gone, it starts at that position.

    Args:
        items: the complete list, in order.
        parameters: the request's query parameters.
        name_of: the key of an object in the list.

    Raises:
        ApiError: 400, an invalid limit.
        BadCursorError: the cursor belongs to another list.
    """
    limit = integer(parameters, "limit", low=1, high=MAX_LIMIT)
    last = open_cursor(parameters.get("cursor"), (str, int))
    begin = 0
    if last is not None:
        name, place = last
        begin = next((index + 1 for index, item in enumerate(items) if name_of(item) == name), max(0, place))
    shown = list(items[begin:] if limit is None else items[begin : begin + limit])
    end = begin + len(shown)
    return shown, seal((name_of(shown[-1]), end - 1)) if shown and end < len(items) else None


def paged_view(request: web.Request, view: View, name_of: Callable[[Any], str]) -> web.Response:
    """Answers with one page of a view that has all its `items`."""
    items, following = page_of(view.items, parameters_of(request), name_of)  # type: ignore[attr-defined]
    return json_response(msgspec.structs.replace(view, items=items, next=following))


def is_paged(request: web.Request) -> bool:
    """Whether the request selects a page of a list."""
    return any(query.name in request.query for query in COMPLETE_PAGING)
