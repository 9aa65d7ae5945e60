"""`GET /pending`: the pending instances in the order in which they are placed, and what is reserved for them.

Reservations live within one placement pass. So one pass is made in memory, over one snapshot, and nothing is written.
It takes seconds where thousands are pending: all that ask meanwhile share the next one.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY, Moment
from controller.api.dry_run.passes import PASSES
from controller.api.dry_run.queue import MAX_QUEUED, asks_of, checked
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight
from controller.api.whole_lists import WHOLE_PAGING, is_paged, whole_list
from controller.domain.holdings import Holders
from controller.domain.pending import PendingInstance, in_order
from controller.domain.placement import Ask, Unplaced
from controller.domain.restart_delays import RestartSettings
from controller.live.database_full import while_full
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit, may_reserve
from controller.scheduling.inventory.capacity import Inventory
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import view_of
from controller.store.placement.pending import read_awaited, read_holders, read_pending, read_planned_copies
from controller.store.placement.plan_reads import count_queued
from controller.store.views.paging import read_time
from controller.store.views.pending import MOST_UNQUEUED, PendingFacts, read_pending_facts, read_unqueued
from schemas.api.pending import PendingList, PendingView
from schemas.api.view import from_json, to_json

NOT_LISTED: Final = 1_000_000_000  # of one deployment: none is left out for being one of many
READ_LIMIT_S: Final = 20.0
PENDING: Final = web.AppKey("PENDING", SingleFlight[bytes])


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one placement pass starts from."""

    inventory: Inventory
    waiting: Sequence[PendingInstance]
    reserved: Sequence[Ask]
    holders: Holders


@dataclass(frozen=True, slots=True)
class _Seen:
    """The pending instances at one moment; `queued`: ids in order, the first of `of`."""

    at: datetime
    queued: Sequence[str]
    of: int
    facts: Mapping[str, PendingFacts]
    others: Sequence[PendingFacts]
    one_pass: _Pass | None = None


async def get(request: web.Request) -> web.Response:
    """`GET /pending`."""
    whole = await request.app[PENDING].get()
    if is_paged(request):
        return whole_list(request, from_json(PendingList, whole), lambda one: one.instance)
    return web.Response(body=whole, content_type="application/json")


async def pending_context(app: web.Application) -> AsyncIterator[None]:
    """Holds what answers all that ask at once with one pass, and ends it with the app."""
    shared = app[PENDING] = SingleFlight(partial(_pass, app))
    try:
        yield
    finally:
        await shared.close()


async def _pass(app: web.Application) -> bytes:
    """Reads, makes one pass, and encodes it once for all that share it."""
    reserve, keys = app[CONTEXT].reserve, app[CONTEXT].secret_keys
    async with asyncio.timeout(READ_LIMIT_S), app[KEPT_INVENTORY].moment() as moment:
        seen = await _read(moment, reserve, keys)
    reserved_on: Mapping[str, Sequence[str]] = {}
    if seen.one_pass is not None:
        reserved_on = await app[PASSES].run(reservations_of, seen.one_pass, reserve)
    found = _list(seen, reserved_on)
    if app[CONTEXT].database.space.full:
        found = msgspec.structs.replace(found, items=[while_full(one, full=True) for one in found.items])
    return to_json(found)


async def _read(moment: Moment, reserve: ReserveTimes, keys: SecretKeys) -> _Seen:
    connection = moment.connection
    failures = RestartSettings().failures_per_worker
    pending = await read_pending(connection, MAX_QUEUED, failures_per_worker=failures, of_deployment=NOT_LISTED)
    queued = [one.id for one in pending.instances]
    of = await count_queued(connection) if len(queued) == MAX_QUEUED else len(queued)
    at = await read_time(connection)
    facts = await read_pending_facts(connection, queued) if queued else {}
    others = await read_unqueued(connection, queued, more=of > len(queued))
    if not queued:
        return _Seen(at, queued, of, facts, others)
    copies, awaited = await read_planned_copies(connection), await read_awaited(connection)
    asks = await asks_of(connection, [*pending.instances, *copies, *awaited])
    known = {(one.deployment_uid, one.revision) for one in (*pending.instances, *copies, *awaited)} & asks.keys()
    waiting = [
        one.pending_by(asks[one.deployment_uid, one.revision])
        for one in in_order(await checked(connection, pending.instances, keys), awaited)
        if (one.deployment_uid, one.revision) in known
    ]
    reserved = [
        one.ask_by(asks[one.deployment_uid, one.revision])
        for one in copies
        if (one.deployment_uid, one.revision) in known
    ]
    only_leaving = not any(may_reserve(one, reserve.after_s) for one in waiting)
    holders = await read_holders(connection, moment.seen.holdings, only_leaving=only_leaving)
    return _Seen(at, queued, of, facts, others, _Pass(moment.seen.inventory, waiting, reserved, holders))


def reservations_of(one_pass: _Pass, reserve: ReserveTimes) -> dict[str, tuple[str, ...]]:
    """The workers on which capacity is reserved, by instance. Decides as the reconciler does."""
    by_id = {one.ask.instance: one for one in one_pass.waiting}
    leaving = Holders(leaving=one_pass.holders.leaving)
    decisions = _decide(one_pass, leaving, reserve)
    unplaced = (by_id[one.decision.instance] for one in decisions if isinstance(one.decision, Unplaced))
    if any(may_reserve(one, reserve.after_s) for one in unplaced):
        decisions = _decide(one_pass, one_pass.holders, reserve)
    return {one.decision.instance: one.reserved_on for one in decisions if one.reserved_on}


def _decide(one_pass: _Pass, holders: Holders, reserve: ReserveTimes) -> list[AdmissionDecision]:
    inventory = one_pass.inventory
    try:
        promised = [one for one in one_pass.waiting if one.promised is not None]
        return list(
            admit(inventory, one_pass.waiting, holders, reserve=reserve, reserved=one_pass.reserved, promised=promised)
        )
    finally:
        inventory.rollback()


def _list(seen: _Seen, reserved_on: Mapping[str, Sequence[str]]) -> PendingList:
    queued = [
        _view(seen.facts[id_], seen.of, place, reserved_on.get(id_, ()))
        for place, id_ in enumerate(seen.queued, start=1)
        if id_ in seen.facts
    ]
    others = [_view(one, seen.of) for one in seen.others]
    more = seen.of > len(seen.queued) or len(others) == MOST_UNQUEUED
    return PendingList(at=seen.at, of=seen.of, more=more, items=[*queued, *others])


def _view(facts: PendingFacts, of: int, place: int | None = None, reserved_on: Sequence[str] = ()) -> PendingView:
    line = facts.explain.message if facts.explain is not None and facts.phase == "pending" else ""
    return view_of(
        PendingView,
        asdict(facts) | {"message": line or facts.message or facts.reason},
        instance=facts.id,
        explain=facts.explain,
        place=place,
        of=of,
        reserved_on=list(reserved_on),
    )


ROUTES: Final = (
    Route(
        "GET", "/api/v1/pending", get, Access.READ, "List pending instances in the order in which they are placed",
        "instances", PendingList, query=WHOLE_PAGING, momentary=True,
    ),
)  # fmt: skip
