"""`GET /pending`: the pending instances in the order of placement, with the capacity reserved for them.

Reservations exist within one placement pass, so a pass is computed in memory, over one snapshot. With thousands of
pending instances it takes seconds; requests that arrive during a pass share the next one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.dry_run.allowances import PASSES
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY, InventorySnapshot
from controller.api.dry_run.queue import MAX_QUEUED, asks_of, checked
from controller.api.read_routes import COMPLETE_PAGING, is_paged, paged_view
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight, shared_context
from controller.domain.admission import Holders, PendingInstance, in_order
from controller.domain.placement import Ask, Unplaced
from controller.domain.restart_delays import RestartSettings
from controller.live.database_full import while_full
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit, may_reserve
from controller.scheduling.inventory.capacity import Inventory
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import view_of
from controller.store.placement.pass_reads import read_awaited, read_holders, read_pending, read_planned_copies
from controller.store.placement.plan_reads import count_queued
from controller.store.views.paging import read_time
from controller.store.views.pending import MOST_UNQUEUED, StoredPending, read_stored_pending, read_unqueued
from schemas.api.pending import PendingList, PendingView
from schemas.api.view import from_json, to_json

NOT_LISTED: Final = 1_000_000_000  # instances of one deployment, so that all of them are listed
READ_LIMIT_S: Final = 20.0
PENDING: Final = web.AppKey("PENDING", SingleFlight[bytes])


@dataclass(frozen=True, slots=True)
class _PassInput:
    """The input of one placement pass."""

    inventory: Inventory
    waiting: Sequence[PendingInstance]
    reserved: Sequence[Ask]
    holders: Holders


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The pending instances at one time. `queued`: ids in order, the first of `of`."""

    at: datetime
    queued: Sequence[str]
    of: int
    rows: Mapping[str, StoredPending]
    unqueued: Sequence[StoredPending]
    pass_input: _PassInput | None = None


async def get(request: web.Request) -> web.Response:
    complete = await request.app[PENDING].get()
    if is_paged(request):
        return paged_view(request, from_json(PendingList, complete), lambda pending: pending.instance)
    return web.Response(body=complete, content_type="application/json")


async def _compute(app: web.Application) -> bytes:
    reserve, keys = app[CONTEXT].reserve, app[CONTEXT].secret_keys
    async with asyncio.timeout(READ_LIMIT_S), app[KEPT_INVENTORY].snapshot() as inventory:
        snapshot = await _read(inventory, reserve, keys)
    reserved_on: Mapping[str, Sequence[str]] = {}
    if snapshot.pass_input is not None:
        reserved_on = await app[PASSES].run(reservations_of, snapshot.pass_input, reserve)
    view = _list(snapshot, reserved_on)
    if app[CONTEXT].database.space.full:
        view = msgspec.structs.replace(view, items=[while_full(item, full=True) for item in view.items])
    return to_json(view)


async def _read(inventory: InventorySnapshot, reserve: ReserveTimes, keys: SecretKeys) -> _Snapshot:
    connection = inventory.connection
    failures = RestartSettings().failures_per_worker
    pending = await read_pending(connection, MAX_QUEUED, failures_per_worker=failures, of_deployment=NOT_LISTED)
    queued = [one.id for one in pending.instances]
    of = await count_queued(connection) if len(queued) == MAX_QUEUED else len(queued)
    at = await read_time(connection)
    rows = await read_stored_pending(connection, queued) if queued else {}
    unqueued = await read_unqueued(connection, queued, more=of > len(queued))
    if not queued:
        return _Snapshot(at, queued, of, rows, unqueued)
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
    holders = await read_holders(connection, inventory.cache.holdings, only_leaving=only_leaving)
    pass_input = _PassInput(inventory.cache.inventory, waiting, reserved, holders)
    return _Snapshot(at, queued, of, rows, unqueued, pass_input)


def reservations_of(pass_input: _PassInput, reserve: ReserveTimes) -> dict[str, tuple[str, ...]]:
    """The workers on which capacity is reserved, by instance, as the reconciler would decide."""
    by_id = {pending.ask.instance: pending for pending in pass_input.waiting}
    decisions = _decide(pass_input, Holders(leaving=pass_input.holders.leaving), reserve)
    unplaced = (by_id[one.decision.instance] for one in decisions if isinstance(one.decision, Unplaced))
    if any(may_reserve(pending, reserve.after_s) for pending in unplaced):
        decisions = _decide(pass_input, pass_input.holders, reserve)
    return {one.decision.instance: one.reserved_on for one in decisions if one.reserved_on}


def _decide(pass_input: _PassInput, holders: Holders, reserve: ReserveTimes) -> list[AdmissionDecision]:
    inventory, waiting = pass_input.inventory, pass_input.waiting
    try:
        promised = [pending for pending in waiting if pending.promised is not None]
        decisions = admit(inventory, waiting, holders, reserve=reserve, reserved=pass_input.reserved, promised=promised)
        return list(decisions)
    finally:
        inventory.rollback()


def _list(snapshot: _Snapshot, reserved_on: Mapping[str, Sequence[str]]) -> PendingList:
    queued = [
        _view(snapshot.rows[id_], snapshot.of, place, reserved_on.get(id_, ()))
        for place, id_ in enumerate(snapshot.queued, start=1)
        if id_ in snapshot.rows
    ]
    unqueued = [_view(row, snapshot.of) for row in snapshot.unqueued]
    more = snapshot.of > len(snapshot.queued) or len(unqueued) == MOST_UNQUEUED
    return PendingList(at=snapshot.at, of=snapshot.of, more=more, items=[*queued, *unqueued])


def _view(row: StoredPending, of: int, place: int | None = None, reserved_on: Sequence[str] = ()) -> PendingView:
    line = row.explain.message if row.explain is not None and row.phase == "pending" else ""
    return view_of(
        PendingView,
        asdict(row) | {"message": line or row.message or row.reason},
        instance=row.id,
        explain=row.explain,
        place=place,
        of=of,
        reserved_on=list(reserved_on),
    )


pending_context = shared_context(PENDING, lambda app: partial(_compute, app))
ROUTES: Final = (
    Route(
        "GET", "/api/v1/pending", get, Access.READ, "List pending instances in the order in which they are placed",
        "instances", PendingList, query=COMPLETE_PAGING, momentary=True,
    ),
)  # fmt: skip
