"""Workers with their GPUs and cached models: list, read, map, utilization, and their verbs."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from controller.api.agent_proxies import AGENT_PROXIES, ask, unreachable
from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.errors import ApiError, invalid, unavailable
from controller.api.parameters import check_trusted, duration_s, expect_first_generation, flag, parameters_of
from controller.api.read_routes import COMPLETE_PAGING, list_route, paged_view, read_route
from controller.api.route import Access, Handler, Query, Route
from controller.store.core.database import Reader
from controller.store.policies.effective import effective_policies
from controller.store.telemetry.utilization import (
    MAX_TRACKS,
    Track,
    read_utilization,
    tracks_of_deployment,
    tracks_of_gpus,
    tracks_of_instance,
    tracks_of_worker,
)
from controller.store.views.gpus import gpu_by_uuid, list_gpus
from controller.store.views.instances import cache_source
from controller.store.views.map import read_map
from controller.store.views.workers import list_workers, worker_by_name
from controller.store.workers.devices import GpuVerb, set_gpu_cordon
from controller.store.workers.maintenance import WorkerVerb, delete_worker, set_maintenance
from controller.store.workers.stated import state_worker
from schemas.api.envelopes import Page
from schemas.api.gpus import GpuView, MapView
from schemas.api.history import UtilizationView, WatchView
from schemas.api.model_cache import CachedModels, CachedModelView
from schemas.api.requests import DrainBody, PruneBody, WorkerBody
from schemas.api.view import from_json
from schemas.api.workers import WorkerView
from schemas.manifest.problems import FieldProblem
from schemas.wire import PROXY_CACHE

_AGENT_LIMIT: Final = aiohttp.ClientTimeout(total=25.0)
_MOST_BYTES: Final = 8 * 2**20
_OK: Final = 200
_NOT_FOUND: Final = 404
DEFAULT_WINDOW_S: Final = 600.0
MIN_WINDOW_S: Final = 30.0
MAX_WINDOW_S: Final = 14 * 86_400.0
_SUBJECTS: Final = ("gpus", "instance", "deployment", "worker")


async def delete(request: web.Request) -> web.Response:
    name, confirm_dead = request.match_info["name"], flag(parameters_of(request), "confirm_dead")
    await expect_first_generation(request, "worker", name, worker_by_name)
    await delete_worker(request.app[CONTEXT].database, name, confirm_dead=confirm_dead)
    return web.Response(status=204)


async def patch(request: web.Request) -> web.Response:
    body, name, context = await read_model(request, WorkerBody), request.match_info["name"], request.app[CONTEXT]
    check_trusted(body.labels, context.trusted_labels)
    await expect_first_generation(request, "worker", name, worker_by_name)
    return json_response(await state_worker(context.database, name, body.labels, body.advertise_networks))


def _verb(verb: WorkerVerb) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        how = await read_model(request, DrainBody, optional=True) if verb == "drain" else None
        name = request.match_info["name"]
        await expect_first_generation(request, "worker", name, worker_by_name)
        return json_response(await set_maintenance(request.app[CONTEXT].database, name, verb, how))

    return handler


def _gpu_verb(verb: GpuVerb) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        uuid = request.match_info["uuid"]
        await expect_first_generation(request, "gpu", uuid, gpu_by_uuid)
        return json_response(await set_gpu_cordon(request.app[CONTEXT].database, uuid, verb))

    return handler


_PATH: Final = "/api/v1/workers"
_GPUS: Final = "/api/v1/gpus"
_WORKER_VERBS: Final[tuple[tuple[WorkerVerb, str], ...]] = (
    ("cordon", "Place nothing new on a worker"),
    ("uncordon", "Undo cordon and drain"),
    ("drain", "Place nothing new on a worker, and empty it"),
)
_GPU_VERBS: Final[tuple[tuple[GpuVerb, str], ...]] = (
    ("cordon", "Place nothing new on a GPU"),
    ("uncordon", "Undo the cordon of a GPU, and dismiss a grave Xid of it"),
)


async def get_map(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await read_map(connection))


async def get_cache(request: web.Request) -> web.Response:
    return paged_view(request, await _cache(request, "GET", ()), lambda model: model.name)


async def prune(request: web.Request) -> web.Response:
    body = await read_model(request, PruneBody, optional=True)
    query: list[tuple[str, str | float]] = [
        *(("model", model) for model in body.models),
        ("unused_for_s", body.unused_for_s),
    ]
    return json_response(await _cache(request, "POST", query))


async def _cache(request: web.Request, method: str, query: Sequence[tuple[str, str | float]]) -> Page[CachedModelView]:
    async with request.app[CONTEXT].database.snapshot() as connection:
        source = await cache_source(connection, request.match_info["name"])
    if not source.address:
        raise unreachable(source)
    try:
        proxies = request.app[AGENT_PROXIES]
        async with ask(proxies, source, PROXY_CACHE, query, timeout=_AGENT_LIMIT, method=method) as answer:
            if answer.status == _NOT_FOUND:
                raise ApiError(
                    409, "agent_too_old", f"the agent of worker {source.worker!r} keeps no cache; upgrade it"
                )
            if answer.status != _OK:
                raise unreachable(source)
            try:
                content = await answer.content.readexactly(_MOST_BYTES)
            except asyncio.IncompleteReadError as ended:  # the normal case, as lists are shorter
                content = ended.partial
        return Page[CachedModelView](items=list(from_json(CachedModels, content).items))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise unreachable(source) from error
    except msgspec.DecodeError as error:
        message = f"the agent of worker {source.worker!r} gave an answer that is not understood; see its log"
        raise unavailable("bad_answer", message) from error


_MODELS: Final = "/api/v1/workers/{name}/cache"


async def get_utilization(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    window_s = duration_s(parameters, "window", low=MIN_WINDOW_S, high=MAX_WINDOW_S)
    async with request.app[CONTEXT].database.snapshot() as connection:
        tracks, uid = await _tracks(connection, parameters)
        watch = await _watch(connection, uid) if uid is not None else None
        if window_s is None:
            window_s = float(watch.time_window) if watch else DEFAULT_WINDOW_S
        return json_response(await read_utilization(connection, tracks, window_s, watch))


async def _tracks(connection: Reader, parameters: Mapping[str, str]) -> tuple[list[Track], str | None]:
    """The tracks to read, and the uid of their deployment if they belong to one."""
    given = [name for name in _SUBJECTS if parameters.get(name)]
    if len(given) != 1:
        raise invalid([FieldProblem(" or ".join(_SUBJECTS), "give exactly one of these")])
    (subject,) = given
    value = parameters[subject]
    match subject:
        case "instance":
            return await tracks_of_instance(connection, value)
        case "deployment":
            return await tracks_of_deployment(connection, value)
        case "worker":
            return await tracks_of_worker(connection, value), None
        case _:
            uuids = [uuid for uuid in value.split(",") if uuid]
            if len(uuids) > MAX_TRACKS:
                raise invalid([FieldProblem("gpus", f"must be at most {MAX_TRACKS}, got {len(uuids)}")])
            return await tracks_of_gpus(connection, uuids), None


async def _watch(connection: Reader, uid: str) -> WatchView | None:
    policy = (await effective_policies(connection, [uid])).get(uid)
    if policy is None:
        return None
    spec = policy.spec
    return WatchView(name=policy.name, min_gpu_utilization=spec.min_gpu_utilization, time_window=int(spec.time_window))


_QUERY: Final = (
    Query("gpus", f"GPU UUIDs, comma-separated, at most {MAX_TRACKS}"),
    Query("instance", "GPUs claimed by this instance; on a shared GPU, its own part"),
    Query("deployment", "the same for all instances of this deployment"),
    Query("worker", "all GPUs of this worker"),
    Query("window", "how far back, such as 10m (default: the effective policy's window, else 10m)"),
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
              DrainBody if verb == "drain" else None, expects="generation")
        for verb, summary in _WORKER_VERBS
    ),
    list_route(_GPUS, list_gpus, "List GPUs", Page[GpuView], (Query("worker", "only of this worker"),)),
    read_route(_GPUS, "uuid", gpu_by_uuid, "Read a GPU", GpuView),
    *(
        Route("POST", f"{_GPUS}/{{uuid}}/{verb}", _gpu_verb(verb), Access.OPERATE, summary, "gpus", GpuView,
              expects="generation")
        for verb, summary in _GPU_VERBS
    ),
    Route(
        "GET",
        "/api/v1/map",
        get_map,
        Access.READ,
        "Read all workers and GPUs in columns, as for a map",
        "gpus",
        MapView,
        momentary=True,
    ),
    Route("GET", _MODELS, get_cache, Access.READ, "List cached models", "workers", Page[CachedModelView],
          query=COMPLETE_PAGING),
    Route(
        "POST", _MODELS + "/prune", prune, Access.OPERATE, "Remove cached models that no process uses", "workers",
        Page[CachedModelView], PruneBody,
    ),
    Route(
        "GET", "/api/v1/utilization", get_utilization, Access.READ, "Read recent GPU utilization", "gpus",
        UtilizationView, query=_QUERY, momentary=True,
    ),
)  # fmt: skip
