"""Workers: list, read, cordon, uncordon, drain, delete."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.parameters import check_trusted, expect_first_generation, flag, parameters_of
from controller.api.read_routes import list_route, read_route
from controller.api.route import Access, Handler, Query, Route
from controller.store.views.workers import list_workers, worker_by_name
from controller.store.workers.maintenance import WorkerVerb, delete_worker, set_maintenance
from controller.store.workers.stated import state_worker
from schemas.api.envelopes import Page
from schemas.api.requests import DrainBody, WorkerBody
from schemas.api.workers import WorkerView


async def delete(request: web.Request) -> web.Response:
    """`DELETE /workers/{name}?confirm_dead=true`."""
    name, confirm_dead = request.match_info["name"], flag(parameters_of(request), "confirm_dead")
    await expect_first_generation(request, "worker", name, worker_by_name)
    await delete_worker(request.app[CONTEXT].database, name, confirm_dead=confirm_dead)
    return web.Response(status=204)


async def patch(request: web.Request) -> web.Response:
    """`PATCH /workers/{name}`."""
    body, name, context = await read_model(request, WorkerBody), request.match_info["name"], request.app[CONTEXT]
    check_trusted(body.labels, context.trusted_labels)
    await expect_first_generation(request, "worker", name, worker_by_name)
    return json_response(await state_worker(context.database, name, body.labels, body.advertise_networks))


async def drain(request: web.Request) -> web.Response:
    """`POST /workers/{name}/drain`."""
    how = await read_model(request, DrainBody, optional=True)
    name = request.match_info["name"]
    await expect_first_generation(request, "worker", name, worker_by_name)
    return json_response(await set_maintenance(request.app[CONTEXT].database, name, "drain", how))


def _verb(verb: WorkerVerb) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await expect_first_generation(request, "worker", name, worker_by_name)
        return json_response(await set_maintenance(request.app[CONTEXT].database, name, verb))

    return handler


_PATH: Final = "/api/v1/workers"
_SUMMARIES: Final[tuple[tuple[WorkerVerb, str], ...]] = (
    ("cordon", "Place nothing new on a worker"),
    ("uncordon", "Undo cordon and drain"),
)
ROUTES: Final = (
    list_route(_PATH, list_workers, "List workers", Page[WorkerView]),
    read_route(_PATH, "name", worker_by_name, "Read a worker", WorkerView),
    Route(
        "DELETE", _PATH + "/{name}", delete, Access.ADMINISTER, "Delete a worker", "workers", status=204,
        query=(Query("confirm_dead", "the host is certainly dead: release its claims", "boolean"),),
        expects="generation",
    ),
    Route(
        "PATCH", _PATH + "/{name}", patch, Access.ADMINISTER, "State trusted labels of a worker, and its networks",
        "workers", WorkerView, WorkerBody, expects="generation",
    ),
    *(
        Route("POST", f"{_PATH}/{{name}}/{verb}", _verb(verb), Access.OPERATE, summary, "workers", WorkerView,
              expects="generation")
        for verb, summary in _SUMMARIES
    ),
    Route(
        "POST", _PATH + "/{name}/drain", drain, Access.OPERATE, "Place nothing new on a worker, and empty it",
        "workers", WorkerView, DrainBody, expects="generation",
    ),
)  # fmt: skip
