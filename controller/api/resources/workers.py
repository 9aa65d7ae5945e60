"""Workers: read, cordon, uncordon, drain, delete."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.exchange import answer, flag, known_parameters, page_limit
from controller.api.route import PAGING, Access, Query, Route
from controller.store.views.workers import list_workers, worker_by_name
from controller.store.workers.flags import WorkerVerb, delete_worker, set_flags
from schemas.api.envelopes import Page
from schemas.api.workers import WorkerView


async def get_all(request: web.Request) -> web.Response:
    """`GET /workers`."""
    parameters = known_parameters(request, "limit", "cursor")
    async with request.app[CONTEXT].database.snapshot() as connection:
        page = await list_workers(connection, limit=page_limit(parameters), cursor=parameters.get("cursor"))
    return answer(page)


async def get_one(request: web.Request) -> web.Response:
    """`GET /workers/{name}`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return answer(await worker_by_name(connection, request.match_info["name"]))


async def delete(request: web.Request) -> web.Response:
    """`DELETE /workers/{name}?confirm_dead=true`."""
    parameters = known_parameters(request, "confirm_dead")
    await delete_worker(
        request.app[CONTEXT].database, request.match_info["name"], confirm_dead=flag(parameters, "confirm_dead")
    )
    return web.Response(status=204)


def _verb(verb: WorkerVerb) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        return answer(await set_flags(request.app[CONTEXT].database, request.match_info["name"], verb))

    return handler


_PATH: Final = "/api/v1/workers"
_SUMMARIES: Final[tuple[tuple[WorkerVerb, str], ...]] = (
    ("cordon", "Place nothing new here"),
    ("uncordon", "Take back cordon and drain"),
    ("drain", "Place nothing new here and move away what runs"),
)
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List workers", "workers", Page[WorkerView], query=PAGING),
    Route("GET", _PATH + "/{name}", get_one, Access.READ, "Read a worker", "workers", WorkerView),
    Route(
        "DELETE", _PATH + "/{name}", delete, Access.ADMINISTER, "Remove a worker", "workers", status=204,
        query=(Query("confirm_dead", "its host is dead for certain: release what it holds", "boolean"),),
    ),
    *(
        Route("POST", f"{_PATH}/{{name}}/{verb}", _verb(verb), Access.OPERATE, summary, "workers", WorkerView)
        for verb, summary in _SUMMARIES
    ),
)  # fmt: skip
