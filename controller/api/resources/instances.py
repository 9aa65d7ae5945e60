"""Instances: read."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.exchange import answer, known_parameters, page_limit
from controller.api.route import PAGING, Access, Query, Route
from controller.store.views.instances import instance_by_id, list_instances
from schemas.api.envelopes import Page
from schemas.api.instances import InstanceView


async def get_all(request: web.Request) -> web.Response:
    """`GET /instances`."""
    parameters = known_parameters(request, "limit", "cursor", "deployment", "worker")
    async with request.app[CONTEXT].database.snapshot() as connection:
        page = await list_instances(
            connection,
            limit=page_limit(parameters),
            cursor=parameters.get("cursor"),
            deployment=parameters.get("deployment"),
            worker=parameters.get("worker"),
        )
    return answer(page)


async def get_one(request: web.Request) -> web.Response:
    """`GET /instances/{id}`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return answer(await instance_by_id(connection, request.match_info["id"]))


_FILTERS: Final = (
    Query("deployment", "only of this deployment"),
    Query("worker", "only those that hold something on this worker"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/instances", get_all, Access.READ, "List instances", "instances", Page[InstanceView],
        query=(*PAGING, *_FILTERS),
    ),
    Route("GET", "/api/v1/instances/{id}", get_one, Access.READ, "Read an instance", "instances", InstanceView),
)  # fmt: skip
