"""The idle report: GPU hours claimed, used, wasted and freed, and what a policy with other figures would have freed."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import duration_s, parameters_of, whole_number
from controller.api.resources.idle_cost import idle_cost, total_cost, unpriced
from controller.api.resources.idle_replay import would_free
from controller.api.route import Access, Query, Route
from controller.domain.policies import EffectivePolicy
from controller.domain.telemetry.gpu_prices import GpuPrices
from controller.store.core.database import Database
from controller.store.policies.effective import effective_policies
from controller.store.telemetry.idle_report import (
    DeploymentUsage,
    Sums,
    add_usage,
    days,
    read_claimed,
    rolled_up_to,
)
from schemas.api.history import IdleFigures, IdleItem, IdleReport, PolicyItem, ReplayedPolicy
from schemas.manifest.policy import MAX_WINDOW_S, MIN_WINDOW_S, UtilizationPolicy
from schemas.manifest.problems import FieldProblem

DEFAULT_SINCE_S: Final = 7 * 86_400.0
MAX_SINCE_S: Final = 400 * 86_400.0
WASTED_BELOW: Final = 10  # percent, where no policy applies
DEADLINE_S: Final = 55.0  # longer than of other routes: this reads weeks of many GPUs
INLINE: Final = "inline"
_HOUR_S: Final = 3600.0


async def get(request: web.Request) -> web.Response:
    """`GET /reports/idle`."""
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=MAX_SINCE_S) or DEFAULT_SINCE_S
    replayed = _replayed(parameters)
    async with asyncio.timeout(DEADLINE_S):
        context = request.app[CONTEXT]
        return json_response(await _report(context.database, since_s, replayed, context.prices))


def since_of(until: datetime, since_s: float) -> datetime:
    """The begin of what is reported."""
    return until - timedelta(seconds=since_s)


def _replayed(parameters: Mapping[str, str]) -> UtilizationPolicy | None:
    minimum = whole_number(parameters, "min_gpu_utilization", low=1, high=100)
    window_s = duration_s(parameters, "time_window", low=MIN_WINDOW_S, high=MAX_WINDOW_S)
    if minimum is None and window_s is None:
        return None
    if minimum is None or window_s is None:
        missing = "min_gpu_utilization" if minimum is None else "time_window"
        raise invalid(
            [
                FieldProblem(
                    missing, "is required with the other; a replayed policy needs min_gpu_utilization and time_window"
                )
            ]
        )
    return UtilizationPolicy(min_gpu_utilization=minimum, time_window=int(window_s))


async def _report(
    database: Database, since_s: float, replayed: UtilizationPolicy | None, prices: GpuPrices
) -> IdleReport:
    """Reads in several short transactions, since the past does not change; the replay's at the same time."""
    async with database.snapshot() as connection:
        until = await rolled_up_to(connection)
        since = since_of(until, since_s)
        sums = await read_claimed(connection, since, until)
        policies = await effective_policies(connection, list(sums.spent))
    minimums = {uid: policy.spec.min_gpu_utilization for uid, policy in policies.items()}
    replay = asyncio.create_task(would_free(database, since, until, replayed)) if replayed else None
    try:
        for begin, end in days(since, until):
            async with database.snapshot() as connection:
                await add_usage(connection, sums, begin, end, minimums, WASTED_BELOW)
        would = await replay if replay else None
    finally:
        if replay:
            replay.cancel()
            await asyncio.gather(replay, return_exceptions=True)
    items = [_item(uid, spent, policies.get(uid), would, prices) for uid, spent in sums.spent.items()]
    items.sort(key=lambda item: (-item.gpu_hours.wasted, item.deployment, item.uid))
    return IdleReport(
        since=since,
        until=until,
        items=items,
        policies=_policies(sums),
        total=_figures(_total(sums), None if would is None else sum(map(_sum, would.values()))),
        replayed=None
        if replayed is None
        else ReplayedPolicy(min_gpu_utilization=replayed.min_gpu_utilization, time_window=int(replayed.time_window)),
        currency=prices.currency if prices else None,
        total_cost=total_cost([item.cost for item in items if item.cost]) if prices else None,
        unpriced=unpriced(sums.spent.values(), prices),
    )


def _item(
    uid: str,
    spent: DeploymentUsage,
    policy: EffectivePolicy | None,
    would: Mapping[str, Mapping[str, float]] | None,
    prices: GpuPrices,
) -> IdleItem:
    would_free = None if would is None else would.get(uid, {})
    return IdleItem(
        deployment=spent.deployment,
        uid=uid,
        deleted=spent.deleted,
        policy="" if policy is None else policy.name or INLINE,
        min_gpu_utilization=WASTED_BELOW if policy is None else policy.spec.min_gpu_utilization,
        gpu_hours=_figures(spent, None if would_free is None else _sum(would_free)),
        cost=idle_cost(spent.by_model, would_free, prices) if prices else None,
    )


def _figures(spent: DeploymentUsage, would_s: float | None) -> IdleFigures:
    total = spent.total
    return IdleFigures(
        claimed=total.claimed_s / _HOUR_S,
        used=total.used_s / _HOUR_S,
        wasted=total.wasted_s / _HOUR_S,
        unknown=total.unknown_s / _HOUR_S,
        freed=spent.freed_s / _HOUR_S,
        would_free=None if would_s is None else would_s / _HOUR_S,
    )


def _sum(seconds: Mapping[str, float]) -> float:
    return sum(seconds.values())


def _total(sums: Sums) -> DeploymentUsage:
    total = DeploymentUsage()
    for spent in sums.spent.values():
        total.by_model[""].add(spent.total)
        total.freed_s += spent.freed_s
    return total


def _policies(sums: Sums) -> list[PolicyItem]:
    found = sorted(sums.freed.items(), key=lambda entry: (-entry[1].freed_s, entry[0]))
    return [
        PolicyItem(policy=name or INLINE, actions=freed.actions, gpu_hours_freed=freed.freed_s / _HOUR_S)
        for name, freed in found
    ]


_QUERY: Final = (
    Query("since", "how far back, such as 12h (default 7d)"),
    Query("min_gpu_utilization", "percent, of the policy to replay; requires time_window", "integer"),
    Query("time_window", "window of the policy to replay, such as 10m; requires min_gpu_utilization"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/reports/idle", get, Access.READ, "Read GPU hours claimed, used, wasted and freed", "reports",
        IdleReport, query=_QUERY, stream=True,
    ),
)  # fmt: skip
