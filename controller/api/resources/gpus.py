"""GPUs: read."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.exchange import answer, known_parameters, page_limit
from controller.api.route import PAGING, Access, Query, Route
from controller.store.views.gpus import gpu_by_uuid, list_gpus
from schemas.api.envelopes import Page
from schemas.api.gpus import GpuView


async def get_all(request: web.Request) -> web.Response:
    """`GET /gpus`."""
    parameters = known_parameters(request, "limit", "cursor", "worker")
    async with request.app[CONTEXT].database.snapshot() as connection:
        page = await list_gpus(
            connection,
            limit=page_limit(parameters),
            cursor=parameters.get("cursor"),
            worker=parameters.get("worker"),
        )
    return answer(page)


async def get_one(request: web.Request) -> web.Response:
    """`GET /gpus/{uuid}`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return answer(await gpu_by_uuid(connection, request.match_info["uuid"]))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/gpus", get_all, Access.READ, "List GPUs", "gpus", Page[GpuView],
        query=(*PAGING, Query("worker", "only of this worker")),
    ),
    Route("GET", "/api/v1/gpus/{uuid}", get_one, Access.READ, "Read a GPU", "gpus", GpuView),
)  # fmt: skip
