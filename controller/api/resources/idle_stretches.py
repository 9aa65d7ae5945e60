"""`GET /deployments/{name}/idle`: when a deployment wasted GPU hours, by the rules of the idle report."""

import asyncio
import uuid
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import ApiError, invalid
from controller.api.parameters import duration_s, parameters_of
from controller.api.resources.idle_report import (
    DEADLINE_S,
    DEFAULT_SINCE_S,
    INLINE,
    MAX_SINCE_S,
    WASTED_BELOW,
    since_of,
)
from controller.api.route import Access, Query, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.domain.telemetry.history import Stretch, WastedMinute, stretches_of
from controller.store.core.database import Database
from controller.store.policies.effective import effective_policies
from controller.store.telemetry.idle_report import days, had_claims_as, read_wasted_minutes, rolled_up_to
from controller.store.views.deployments import deployment_by_name
from schemas.api.history import IdleStretch, IdleStretches
from schemas.manifest.problems import FieldProblem

_HOUR_S: Final = 3600.0


async def get(request: web.Request) -> web.Response:
    """`GET /deployments/{name}/idle`."""
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=MAX_SINCE_S) or DEFAULT_SINCE_S
    uid = parameters.get("uid")
    if uid is not None:
        try:
            uid = str(uuid.UUID(uid))
        except ValueError:
            raise invalid([FieldProblem("uid", "must be a UUID")]) from None
    async with asyncio.timeout(DEADLINE_S):
        found = await _read(request.app[CONTEXT].database, request.match_info["name"], uid, since_s)
    return whole_list(request, found, lambda stretch: stretch.since.isoformat())


async def _read(database: Database, name: str, uid: str | None, since_s: float) -> IdleStretches:
    """Reads in several short transactions, since the past does not change."""
    async with database.snapshot() as connection:
        until = await rolled_up_to(connection)
        since = since_of(until, since_s)
        if uid is None:
            uid = (await deployment_by_name(connection, name)).uid
        elif not await had_claims_as(connection, uid, name, since):
            raise ApiError(404, "not_found", f"uid: no deployment {name!r} with this uid had claims in that time")
        policy = (await effective_policies(connection, [uid])).get(uid)
    minimum = WASTED_BELOW if policy is None else policy.spec.min_gpu_utilization
    minutes: list[WastedMinute] = []
    for begin, end in days(since, until):
        async with database.snapshot() as connection:
            minutes += await read_wasted_minutes(connection, uid, begin, end, minimum)
    found = await asyncio.to_thread(stretches_of, minutes, since, until)
    return IdleStretches(
        deployment=name,
        uid=uid,
        since=since,
        until=until,
        policy="" if policy is None else policy.name or INLINE,
        min_gpu_utilization=minimum,
        gpu_hours=sum(one.gpu_s for one in found) / _HOUR_S,
        items=[_view(one) for one in found],
    )


def _view(one: Stretch) -> IdleStretch:
    seconds = (one.until - one.since).total_seconds()
    return IdleStretch(since=one.since, until=one.until, seconds=seconds, gpus=one.gpus, gpu_hours=one.gpu_s / _HOUR_S)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/deployments/{name}/idle", get, Access.READ, "Read when a deployment wasted GPU hours",
        "deployments", IdleStretches, stream=True,
        query=(
            *WHOLE_PAGING,
            Query("since", "how far back, such as 12h (default 7d)"),
            Query("uid", "of a deployment of this name that is gone, as the idle report names it"),
        ),
    ),
)  # fmt: skip
