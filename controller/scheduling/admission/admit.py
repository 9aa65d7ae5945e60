"""Admission: the order in which pending instances are placed, and what is reserved for those that do not fit.

Instances are placed by priority, then age. A smaller one may be backfilled ahead of a larger one that does not fit.
Reservations keep this from lasting for ever. Capacity is reserved for two kinds of instances:

- the one that has been pending longest among the highest priority, after `reserve_after_s`, at the place for which the
  fewest holders have to end. Tasks, relocations and instances that are stopping end by themselves. Where servers
  would have to end too, whatever their `restart`, capacity is reserved for `reserve_for_s` at most; then the next one
  has its turn;
- those that may preempt, where capacity is being freed or where victims are chosen.

A reservation counts as claimed for all that come later in the queue, for this pass alone. The next pass decides anew,
so no reservation can be forgotten or left behind. Nothing is reserved for an ask that would not fit on empty workers.
"""

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from controller.domain.holdings import Holder, Holders
from controller.domain.pending import PendingInstance
from controller.domain.placement import Ask, Decision, Placed, Unplaced
from controller.scheduling.admission.future_capacity import FutureCapacity
from controller.scheduling.admission.reservation import Reservation, Reservations, worker_names, workers_of
from controller.scheduling.explain.unplaced import explain_unplaced
from controller.scheduling.explain.wording import with_note
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import find
from schemas.api.explain import Explain, NearestMiss
from schemas.placement_reasons import Reason

RESERVE_AFTER_S: Final = 60.0
RESERVE_FOR_S: Final = 3600.0
_SECONDS_OF: Final = (("h", 3600), ("min", 60), ("s", 1))


class Reservable(Protocol):
    """What decides whether capacity may be reserved for a pending instance; see `PendingInstance`."""

    @property
    def preempt(self) -> bool: ...  # noqa: D102
    @property
    def waited_s(self) -> float: ...  # noqa: D102
    @property
    def relocation_target(self) -> object: ...  # noqa: D102


def may_reserve(pending: Reservable, reserve_after_s: float) -> bool:
    """Whether capacity may be reserved for it if it does not fit. The holders have to be read for that."""
    return pending.preempt or pending.relocation_target is not None or pending.waited_s >= reserve_after_s


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The decision for one pending instance.

    Attributes:
        decision: its place, or why it has none.
        victims: the holders that it preempts with this pass.
        awaits_servers: capacity is reserved for it that servers hold, so its time for that runs.
        after_victims: its place once the victims have ended.
        reserved_on: the names of the workers on which capacity is reserved for it, by rank; empty: none is.
    """

    decision: Decision
    victims: tuple[Holder, ...] = ()
    awaits_servers: bool = False
    after_victims: Placed | None = None
    reserved_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReserveTimes:
    """When capacity is reserved for a pending instance.

    Attributes:
        after_s: how long an instance has to be pending before.
        for_s: for how long, where servers would have to end for it.
    """

    after_s: float = RESERVE_AFTER_S
    for_s: float = RESERVE_FOR_S


DEFAULT_RESERVE: Final = ReserveTimes()


def admit(
    inventory: Inventory,
    waiting: Iterable[PendingInstance],
    holders: Holders | None,
    *,
    reserve: ReserveTimes = DEFAULT_RESERVE,
    reserved: Sequence[Ask] = (),
    max_preemptions: float = math.inf,
) -> Generator[AdmissionDecision, None, None]:
    """Decides in the order given, one instance per iteration, and reserves placed ones as `place` does.

    The caller must close the generator unless it is exhausted: closing takes the reservations off the inventory.

    Args:
        inventory: what is free. The caller must not change it before the last decision.
        waiting: the pending instances, by priority and age. For awaited ones capacity is reserved at most.
        holders: the instances with claims. None: not read, so nothing is reserved.
        reserve: when and how long capacity is reserved.
        reserved: asks for which capacity is reserved before anything is placed, where they fit.
        max_preemptions: number of preempting instances after which it ends, since choosing victims takes long.

    Yields:
        One decision per instance that is not awaited, in the same order. Those that are missing at the end were not
        looked at.
    """
    inventory.begin_pass()
    reservations = Reservations(inventory)
    future = None if holders is None else FutureCapacity(reservations, holders)
    unplaceable: dict[object, Unplaced] = {}  # by shape: free capacity only shrinks, so a later equal ask fits nowhere
    try:
        for ask in reserved:
            if (placed := find(inventory, ask)) is not None:
                reservations.add(ask, placed)
        for pending in waiting:
            if pending.awaited:
                if future is not None and (found := future.after_leaving(pending.ask, bounded=True)) is not None:
                    reservations.add(pending.ask, found.placed, found.victims)
                continue
            decision = _decide(reservations, pending.ask, unplaceable)
            if isinstance(decision, Placed):
                yield AdmissionDecision(decision)
                continue
            if future is None:
                admission = AdmissionDecision(decision)
            else:
                admission = _reserve(reservations, future, pending, decision, reserve)
            yield admission
            max_preemptions -= bool(admission.victims)
            if max_preemptions <= 0:
                return
    finally:
        reservations.release()


def _decide(reservations: Reservations, ask: Ask, unplaceable: dict[object, Unplaced]) -> Decision:
    """The place, or why there is none: with reason `reserved` where only reservations keep the ask from fitting."""
    shape, inventory = ask.shape(), reservations.inventory
    known = unplaceable.get(shape)
    blocked = known is not None and reservations.block(ask)
    if known is not None and blocked == (known.reason == Reason.RESERVED):
        return replace(known, instance=ask.instance)
    if known is None and (placed := find(inventory, ask)) is not None:
        inventory.reserve(placed, ask.deployment_uid)
        return placed
    decision = Unplaced(ask.instance, _explain(reservations, ask, blocked=reservations.block(ask)))
    if reservations.block(ask):
        decision = _with_note(decision, Reason.RESERVED, reservations.message())
    unplaceable[shape] = decision
    return decision


def _explain(reservations: Reservations, ask: Ask, *, blocked: bool) -> Explain:
    """Why it does not fit. Reserved capacity counts as free, or, where the ask would fit there, as `reserved`."""
    if not blocked:
        with reservations.released():
            return explain_unplaced(reservations.inventory, ask)
    explain = explain_unplaced(reservations.inventory, ask)
    with reservations.released():
        placed = find(reservations.inventory, ask)
    names = worker_names(reservations.inventory, placed) if placed is not None else ""
    nearest = NearestMiss(worker=names, code=Reason.RESERVED, message=f"{names} has enough, but it is reserved")
    return explain.model_copy(update={"nearest": nearest, "message": f"0/{explain.workers} fit"})


def _reserve(
    reservations: Reservations,
    future: FutureCapacity,
    pending: PendingInstance,
    decision: Unplaced,
    reserve: ReserveTimes,
) -> AdmissionDecision:
    """Reserves capacity for an instance that does not fit now, where it may have a reservation."""
    ask, target = pending.ask, pending.relocation_target
    if target is not None and (found := future.relocation_target(target)) is not None:
        return _freeing(_reserved(reservations, ask, found, decision, None, "relocations free capacity for it on"))
    if (found := future.after_leaving(ask, bounded=not pending.preempt)) is not None:
        reason = Reason.PREEMPTING if pending.preempting else None
        return _freeing(_reserved(reservations, ask, found, decision, reason, "capacity is being freed for it on"))
    preemption = future.preempt(pending) if pending.preempt and not pending.preempting else ""
    if isinstance(preemption, Reservation):
        names = ", ".join(victim.instance for victim in preemption.victims)
        admission = _reserved(reservations, ask, preemption, decision, Reason.PREEMPTING, f"preempts {names} on")
        return replace(_freeing(admission), victims=preemption.victims, after_victims=preemption.placed)
    if preemption:
        decision = _with_note(decision, decision.reason, preemption)
    long_wait = pending.waited_s >= reserve.after_s and not reservations.for_long_wait
    if decision.reason != Reason.RESERVED and long_wait:
        admission = _reserve_for_long_wait(reservations, future, pending, decision, reserve)
        if reservations.for_long_wait:
            return admission
        decision = admission.decision if isinstance(admission.decision, Unplaced) else decision
    future.enqueue(pending)
    return AdmissionDecision(decision)


def _reserve_for_long_wait(
    reservations: Reservations,
    future: FutureCapacity,
    pending: PendingInstance,
    decision: Unplaced,
    reserve: ReserveTimes,
) -> AdmissionDecision:
    """Reserves capacity against what ends by itself, else for a bounded time against servers."""
    text = "pending for long, so capacity is reserved for it"
    if (found := future.earliest(pending.ask, servers=False)) is not None:
        reservations.for_long_wait = True
        return _reserved(reservations, pending.ask, found, decision, None, f"{text} on")
    if pending.reserved_s is not None and pending.reserved_s >= reserve.for_s:
        note = f"no longer reserved for it after {_duration(reserve.for_s)}: servers hold what it needs"
        return AdmissionDecision(_with_note(decision, None, note))
    if (found := future.earliest(pending.ask, servers=True)) is None:
        return AdmissionDecision(decision)
    reservations.for_long_wait = True
    text = f"{text} for at most {_duration(reserve.for_s)}, since servers hold it, on"
    return replace(_reserved(reservations, pending.ask, found, decision, None, text), awaits_servers=True)


def _duration(seconds: float) -> str:
    unit, length = next((pair for pair in _SECONDS_OF if seconds >= pair[1]), _SECONDS_OF[-1])
    return f"{seconds / length:g} {unit}"


def _reserved(
    reservations: Reservations, ask: Ask, found: Reservation, decision: Unplaced, reason: Reason | None, text: str
) -> AdmissionDecision:
    reservations.add(ask, found.placed, found.victims)
    names = workers_of(reservations.inventory, found.placed)
    note = f"{text} {', '.join(names)}"
    return AdmissionDecision(_with_note(decision, reason, note), reserved_on=names)


def _freeing(admission: AdmissionDecision) -> AdmissionDecision:
    """Marked as one that is placed once capacity has been freed."""
    decision = admission.decision
    if not isinstance(decision, Unplaced):
        return admission
    explain = decision.explain.model_copy(update={"freeing": True})
    return replace(admission, decision=replace(decision, explain=explain))


def _with_note(decision: Unplaced, reason: Reason | None, note: str) -> Unplaced:
    return replace(decision, explain=with_note(decision.explain, note), reason=reason)
