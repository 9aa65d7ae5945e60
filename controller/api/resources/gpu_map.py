"""`GET /map`: all workers and GPUs in columns."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.route import Access, Route
from controller.store.views.map import read_map
from schemas.api.map import MapView


async def get(request: web.Request) -> web.Response:
    """`GET /map`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        found = await read_map(connection)
    return json_response(found)


ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/map",
        get,
        Access.READ,
        "Read all workers and GPUs in columns, as for a map",
        "gpus",
        MapView,
        momentary=True,
    ),
)
