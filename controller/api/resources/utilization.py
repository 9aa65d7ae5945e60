"""Utilization: recent GPU utilization as series for graphs."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import duration_s, parameters_of
from controller.api.route import Access, Query, Route
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
from schemas.api.history import UtilizationView, WatchView
from schemas.manifest.problems import FieldProblem

DEFAULT_WINDOW_S: Final = 600.0
MIN_WINDOW_S: Final = 30.0
MAX_WINDOW_S: Final = 14 * 86_400.0
_SUBJECTS: Final = ("gpus", "instance", "deployment", "worker")


async def get(request: web.Request) -> web.Response:
    """`GET /utilization`."""
    parameters = parameters_of(request)
    window_s = duration_s(parameters, "window", low=MIN_WINDOW_S, high=MAX_WINDOW_S)
    async with request.app[CONTEXT].database.snapshot() as connection:
        tracks, uid = await _tracks(connection, parameters)
        watch = await _watch(connection, uid) if uid is not None else None
        if window_s is None:
            window_s = float(watch.time_window) if watch else DEFAULT_WINDOW_S
        return json_response(await read_utilization(connection, tracks, window_s, watch))


async def _tracks(connection: Reader, parameters: Mapping[str, str]) -> tuple[list[Track], str | None]:
    """The tracks to read, and the uid of their deployment where they belong to one."""
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
    Route(
        "GET", "/api/v1/utilization", get, Access.READ, "Read recent GPU utilization", "gpus", UtilizationView,
        query=_QUERY, momentary=True,
    ),
)  # fmt: skip
