"""The idle report: GPU hours claimed, used, wasted and freed, their cost, and what another policy would have freed."""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.errors import ApiError, invalid
from controller.api.parameters import duration_s, integer, parameters_of
from controller.api.read_routes import COMPLETE_PAGING, paged_view
from controller.api.route import Access, Query, Route
from controller.decide.policies.replay import Replay, reach_s
from controller.domain.policies import EffectivePolicy
from controller.domain.telemetry.gpu_prices import GpuPrices, cost_of
from controller.domain.telemetry.history import Minutes, Stretch, Track, WastedMinute, stretches_of
from controller.store.core.database import Database
from controller.store.policies.effective import effective_policies
from controller.store.telemetry.idle_report import (
    DeploymentUsage,
    GpuSeconds,
    Sums,
    add_usage,
    days,
    had_claims_as,
    read_claimed,
    read_minutes,
    read_pasts,
    read_wasted_minutes,
    rolled_up_to,
)
from controller.store.telemetry.minute_hours import MinutesRead
from controller.store.views.deployments import deployment_by_name
from schemas.api.history import (
    IdleCost,
    IdleFigures,
    IdleItem,
    IdleReport,
    IdleStretch,
    IdleStretches,
    PolicyItem,
    ReplayedPolicy,
    UnpricedModel,
)
from schemas.manifest.policy import MAX_WINDOW_S, MIN_WINDOW_S, UtilizationPolicy
from schemas.manifest.problems import FieldProblem

_HOUR_S: Final = 3600.0
DEFAULT_SINCE_S: Final = 7 * 86_400.0
MAX_SINCE_S: Final = 400 * 86_400.0
WASTED_BELOW: Final = 10  # percent, where no policy applies
DEADLINE_S: Final = 55.0  # longer than of other routes, because this reads weeks of many GPUs
INLINE: Final = "inline"


def idle_cost(by_model: Mapping[str, GpuSeconds], would_s: Mapping[str, float] | None, prices: GpuPrices) -> IdleCost:
    """The cost of a deployment's GPU hours. `would_s`: GPU seconds by model that a replayed policy would have freed."""

    def cost(seconds: Mapping[str, float]) -> str | None:
        return _text(cost_of(seconds, prices))

    return IdleCost(
        claimed=cost({model: spent.claimed_s for model, spent in by_model.items()}),
        used=cost({model: spent.used_s for model, spent in by_model.items()}),
        wasted=cost({model: spent.wasted_s for model, spent in by_model.items()}),
        unknown=cost({model: spent.unknown_s for model, spent in by_model.items()}),
        would_free=None if would_s is None else cost(would_s),
    )


def total_cost(costs: Sequence[IdleCost]) -> IdleCost:
    """The sums of the shown amounts, so that columns add up; None if all items lack an amount."""

    def total(amounts: Iterable[str | None]) -> str | None:
        known = [Decimal(amount) for amount in amounts if amount is not None]
        return _text(sum(known, Decimal("0.00"))) if known or not costs else None

    return IdleCost(
        claimed=total(cost.claimed for cost in costs),
        used=total(cost.used for cost in costs),
        wasted=total(cost.wasted for cost in costs),
        unknown=total(cost.unknown for cost in costs),
        would_free=total(cost.would_free for cost in costs),
    )


def unpriced(spent: Iterable[DeploymentUsage], prices: GpuPrices) -> list[UnpricedModel]:
    """Claimed models without a price, most GPU hours first; empty if no prices are set."""
    hours: dict[str, float] = defaultdict(float)
    for usage in spent if prices else ():
        for model, seconds in usage.by_model.items():
            if seconds.claimed_s and prices.of_model(model) is None:
                hours[model] += seconds.claimed_s / _HOUR_S
    return [
        UnpricedModel(model=model, gpu_hours=value)
        for model, value in sorted(hours.items(), key=lambda item: (-item[1], item[0]))
    ]


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


async def would_free(
    database: Database, since: datetime, until: datetime, policy: UtilizationPolicy
) -> dict[str, dict[str, float]]:
    """GPU seconds that the policy would have freed, by deployment uid and the GPUs' model.

    Reads some instances and a day at a time, in short transactions, and stops reading when a decision is final.
    """
    freed: defaultdict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    after: str | None = ""
    while after is not None:
        async with database.snapshot() as connection:
            pasts, after = await read_pasts(connection, since, until, after)
        replays = {past.instance_id: Replay(past.claims, policy) for past in pasts}
        for begin, end in days(since, until):
            wanted = {
                (instance, track)
                for instance, replay in replays.items()
                for track in replay.tracks(begin.timestamp(), end.timestamp())
            }
            if wanted:
                async with database.snapshot() as connection:
                    minutes = await read_minutes(connection, wanted, begin - timedelta(seconds=reach_s(policy)), end)
                # Tens of thousands of minutes: too long for the event loop.
                await asyncio.to_thread(_replay, replays, minutes, begin.timestamp(), end.timestamp())
        for past in pasts:
            for model, seconds in replays[past.instance_id].freed_gpu_s().items():
                freed[past.deployment_uid][model] += seconds
    return freed


def _replay(
    replays: Mapping[str, Replay], minutes: Mapping[tuple[str, Track], MinutesRead], begin: float, end: float
) -> None:
    of_instances: defaultdict[str, dict[Track, Minutes]] = defaultdict(dict)
    for (instance, track), read in minutes.items():
        of_instances[instance][track] = read.columns().peaks()
    for instance, tracks in of_instances.items():
        replays[instance].look(tracks, begin, end)


async def get(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=MAX_SINCE_S) or DEFAULT_SINCE_S
    replayed = _replayed(parameters)
    async with asyncio.timeout(DEADLINE_S):
        context = request.app[CONTEXT]
        return json_response(await _report(context.database, since_s, replayed, context.prices))


def since_of(until: datetime, since_s: float) -> datetime:
    return until - timedelta(seconds=since_s)


def _replayed(parameters: Mapping[str, str]) -> UtilizationPolicy | None:
    minimum = integer(parameters, "min_gpu_utilization", low=1, high=100)
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
    """Reads in several short transactions, since the past does not change, and replays concurrently."""
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
    return [
        PolicyItem(policy=name or INLINE, actions=freed.actions, gpu_hours_freed=freed.freed_s / _HOUR_S)
        for name, freed in sorted(sums.freed.items(), key=lambda entry: (-entry[1].freed_s, entry[0]))
    ]


_QUERY: Final = (
    Query("since", "how far back, such as 12h (default 7d)"),
    Query("min_gpu_utilization", "percent, of the policy to replay; requires time_window", "integer"),
    Query("time_window", "window of the policy to replay, such as 10m; requires min_gpu_utilization"),
)


async def get_stretches(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=MAX_SINCE_S) or DEFAULT_SINCE_S
    uid = parameters.get("uid")
    if uid is not None:
        try:
            uid = str(uuid.UUID(uid))
        except ValueError:
            raise invalid([FieldProblem("uid", "must be a UUID")]) from None
    async with asyncio.timeout(DEADLINE_S):
        view = await _read_stretches(request.app[CONTEXT].database, request.match_info["name"], uid, since_s)
    return paged_view(request, view, lambda stretch: stretch.since.isoformat())


async def _read_stretches(database: Database, name: str, uid: str | None, since_s: float) -> IdleStretches:
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
    stretches = await asyncio.to_thread(stretches_of, minutes, since, until)
    return IdleStretches(
        deployment=name,
        uid=uid,
        since=since,
        until=until,
        policy="" if policy is None else policy.name or INLINE,
        min_gpu_utilization=minimum,
        gpu_hours=sum(stretch.gpu_s for stretch in stretches) / _HOUR_S,
        items=list(map(_view, stretches)),
    )


def _view(idle: Stretch) -> IdleStretch:
    seconds, gpu_hours = (idle.until - idle.since).total_seconds(), idle.gpu_s / _HOUR_S
    return IdleStretch(since=idle.since, until=idle.until, seconds=seconds, gpus=idle.gpus, gpu_hours=gpu_hours)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/reports/idle", get, Access.READ, "Read GPU hours claimed, used, wasted and freed", "reports",
        IdleReport, query=_QUERY, stream=True,
    ),
    Route(
        "GET", "/api/v1/deployments/{name}/idle", get_stretches, Access.READ, "Read when a deployment wasted GPU hours",
        "deployments", IdleStretches, stream=True,
        query=(
            *COMPLETE_PAGING,
            Query("since", "how far back, such as 12h (default 7d)"),
            Query("uid", "of a deployment of this name that is gone, as the idle report names it"),
        ),
    ),
)  # fmt: skip
