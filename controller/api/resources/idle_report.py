"""The idle report: GPU hours claimed, used, wasted and freed, and what a policy with other figures would have freed."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import duration_s, known_parameters, whole_number
from controller.api.responses import json_response
from controller.api.route import Access, Query, Route
from controller.decide.policies.replay import freed_gpu_s
from controller.domain.policies import EffectivePolicy
from controller.store.core.database import Database
from controller.store.policies.effective import effective_policies
from controller.store.telemetry.claim_history import read_pasts
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
    parameters = known_parameters(request, "since", "min_gpu_utilization", "time_window")
    since_s = duration_s(parameters, "since", low=60, high=MAX_SINCE_S) or DEFAULT_SINCE_S
    replayed = _replayed(parameters)
    async with asyncio.timeout(DEADLINE_S):
        return json_response(await _report(request.app[CONTEXT].database, since_s, replayed))


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


async def _report(database: Database, since_s: float, replayed: UtilizationPolicy | None) -> IdleReport:
    """Reads in several short transactions, since the past does not change."""
    async with database.snapshot() as connection:
        until = await rolled_up_to(connection)
        since = since_of(until, since_s)
        sums = await read_claimed(connection, since, until)
        policies = await effective_policies(connection, list(sums.spent))
    minimums = {uid: policy.spec.min_gpu_utilization for uid, policy in policies.items()}
    for begin, end in days(since, until):
        async with database.snapshot() as connection:
            await add_usage(connection, sums, begin, end, minimums, WASTED_BELOW)
    would = await _would_free(database, since, until, replayed) if replayed else None
    items = [_item(uid, spent, policies.get(uid), would) for uid, spent in sums.spent.items()]
    items.sort(key=lambda item: (-item.gpu_hours.wasted, item.deployment, item.uid))
    return IdleReport(
        since=since,
        until=until,
        items=items,
        policies=_policies(sums),
        total=_figures(_total(sums), None if would is None else sum(would.values())),
        replayed=None
        if replayed is None
        else ReplayedPolicy(min_gpu_utilization=replayed.min_gpu_utilization, time_window=int(replayed.time_window)),
    )


async def _would_free(
    database: Database, since: datetime, until: datetime, policy: UtilizationPolicy
) -> dict[str, float]:
    """GPU seconds that the policy would have freed, by deployment uid."""
    freed: defaultdict[str, float] = defaultdict(float)
    after: str | None = ""
    while after is not None:
        async with database.snapshot() as connection:
            pasts, after = await read_pasts(connection, since, until, policy.time_window, after)
        for past in pasts:
            # Tens of thousands of minutes: too long for the event loop.
            freed[past.deployment_uid] += await asyncio.to_thread(
                freed_gpu_s, past.claims, past.minutes, policy, since.timestamp()
            )
    return freed


def _item(
    uid: str, spent: DeploymentUsage, policy: EffectivePolicy | None, would: Mapping[str, float] | None
) -> IdleItem:
    return IdleItem(
        deployment=spent.deployment,
        uid=uid,
        deleted=spent.deleted,
        policy="" if policy is None else policy.name or INLINE,
        min_gpu_utilization=WASTED_BELOW if policy is None else policy.spec.min_gpu_utilization,
        gpu_hours=_figures(spent, None if would is None else would.get(uid, 0.0)),
    )


def _figures(spent: DeploymentUsage, would_s: float | None) -> IdleFigures:
    return IdleFigures(
        claimed=spent.claimed_s / _HOUR_S,
        used=spent.used_s / _HOUR_S,
        wasted=spent.wasted_s / _HOUR_S,
        unknown=max(0.0, spent.claimed_s - spent.known_s) / _HOUR_S,
        freed=spent.freed_s / _HOUR_S,
        would_free=None if would_s is None else would_s / _HOUR_S,
    )


def _total(sums: Sums) -> DeploymentUsage:
    total = DeploymentUsage()
    for spent in sums.spent.values():
        total.claimed_s += spent.claimed_s
        total.known_s += spent.known_s
        total.used_s += spent.used_s
        total.wasted_s += spent.wasted_s
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
