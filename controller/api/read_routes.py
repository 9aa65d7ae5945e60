"""The two read routes that most resources share: a page of the list, and one object."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.parameters import ReadOne, page_limit, parameters_of
from controller.api.route import PAGING, Access, Query, Route
from controller.live.database_full import while_full
from schemas.api.envelopes import Page
from schemas.api.view import View

ReadPage: TypeAlias = Callable[..., Awaitable[Page[Any]]]  # (connection, *, limit, cursor, one keyword per filter)


def list_route(
    path: str, read_page: ReadPage, summary: str, page: type[View], filters: tuple[Query, ...] = ()
) -> Route:
    """`GET path`: one page. Each filter is passed to `read_page` by its name."""
    names = [query.name for query in filters]

    async def handler(request: web.Request) -> web.Response:
        parameters = parameters_of(request)
        limit, cursor = page_limit(parameters), parameters.get("cursor")
        chosen = {name: parameters.get(name) for name in names}
        database = request.app[CONTEXT].database
        async with database.snapshot() as connection:
            found = await read_page(connection, limit=limit, cursor=cursor, **chosen)
        if database.space.full:
            found = msgspec.structs.replace(found, items=[while_full(one, full=True) for one in found.items])
        return json_response(found)

    return Route("GET", path, handler, Access.READ, summary, _tag(path), page, query=(*PAGING, *filters))


def read_route(path: str, variable: str, read_one: ReadOne, summary: str, view: type[View]) -> Route:
    """`GET path/{variable}`: one object."""

    async def handler(request: web.Request) -> web.Response:
        database = request.app[CONTEXT].database
        async with database.snapshot() as connection:
            found = await read_one(connection, request.match_info[variable])
        return json_response(while_full(found, full=database.space.full))

    return Route("GET", f"{path}/{{{variable}}}", handler, Access.READ, summary, _tag(path), view)


def _tag(path: str) -> str:
    return path.rpartition("/")[2]
