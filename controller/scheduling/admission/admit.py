"""Admission: the order in which pending instances are placed, and what is reserved for those that do not fit.

Instances are placed by priority, then age. A smaller instance may be backfilled ahead of a larger one that does not
fit. Reservations bound this. Capacity is reserved for two kinds of instances:

- the longest pending instance of the highest priority, after `reserve_after_s`, at the place for which the fewest
  holders have to end. Tasks, relocations and stopping instances end by themselves. Where servers would have to end too,
  whatever their `restart`, capacity is reserved for `reserve_for_s` at most; then the next instance has its turn;
- instances that may preempt, where capacity is being freed or where victims are chosen.

A reservation counts as claimed for all later instances of the queue, for this pass alone. The next pass decides again,
so no reservation can be left behind. Only capacity that victims leave is promised beyond the pass (`Promises`): it is
reserved before any placement. No capacity is reserved for an ask that would not fit on empty workers.
"""

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from controller.domain.admission import Destination, Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Decision, Placed, Unplaced
from controller.scheduling.admission.future_capacity import FutureCapacity, Promises, destination
from controller.scheduling.admission.reservation import Reservation, Reservations, worker_names, workers_of
from controller.scheduling.explain.unplaced import explain_unplaced, with_note
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from schemas.api.explain import Explain, NearestMiss
from schemas.placement_reasons import Reason

RESERVE_AFTER_S: Final = 60.0
RESERVE_FOR_S: Final = 3600.0
_SECONDS_OF: Final = (("h", 3600), ("min", 60), ("s", 1))


class Reservable(Protocol):
    """A pending instance as far as reservations need it; see `PendingInstance`."""

    @property
    def preempt(self) -> bool: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def relocation_target(self) -> object: ...
    @property
    def promised(self) -> object: ...


def may_reserve(pending: Reservable, reserve_after_s: float) -> bool:
    """Whether capacity may be reserved for it if it does not fit. The holders have to be read for that."""
    has_place = pending.relocation_target is not None or pending.promised is not None
    return pending.preempt or has_place or pending.waited_s >= reserve_after_s


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The decision for one pending instance."""

    decision: Decision
    victims: tuple[Holder, ...] = ()  # the holders that it preempts with this pass
    awaits_servers: bool = False  # capacity is reserved for it that servers hold, so its time for that runs
    after_victims: Placed | None = None  # its place once its victims have ended
    promised: Destination | None = None  # the same by names, for later passes until it is placed
    reserved_on: tuple[str, ...] = ()  # the names of the workers on which capacity is reserved for it, by rank


@dataclass(frozen=True, slots=True)
class ReserveTimes:
    """When and how long capacity is reserved for a pending instance."""

    after_s: float = RESERVE_AFTER_S  # for which an instance is pending before
    for_s: float = RESERVE_FOR_S  # where servers would have to end for it


DEFAULT_RESERVE: Final = ReserveTimes()


def admit(
    inventory: Inventory,
    waiting: Iterable[PendingInstance],
    holders: Holders | None,
    *,
    reserve: ReserveTimes = DEFAULT_RESERVE,
    reserved: Sequence[Ask] = (),
    promised: Iterable[PendingInstance] = (),
    max_preemptions: float = math.inf,
) -> Generator[AdmissionDecision, None, None]:
    """Decides in the order given, one instance per iteration, and reserves placed ones as `place` does.

    The caller must close the generator unless it is exhausted: closing takes the reservations off the inventory.

    Args:
        inventory: the caller must not change it before the last decision.
        waiting: the pending instances, by priority and age. For awaited instances capacity is reserved at most.
        holders: the instances with claims. None if they are not read, so that no capacity is reserved.
        reserve: when and how long capacity is reserved.
        reserved: asks for which capacity is reserved before any placement, where they fit.
        promised: the instances of `waiting` that have a promised place, in the same order.
        max_preemptions: number of preempting instances after which it ends, since choosing victims takes long.

    Yields:
        One decision per instance that is not awaited, in the same order. Instances without a decision are undecided.
    """
    inventory.begin_pass()
    state = _Pass(inventory, holders, reserve)
    try:
        state.reserve_first(reserved, promised)
        for pending in waiting:
            if pending.awaited:
                state.reserve_awaited(pending.ask)
                continue
            admission = state.decide(pending)
            yield admission
            max_preemptions -= bool(admission.victims)
            if max_preemptions <= 0:
                return
    finally:
        state.reservations.release()


class _Pass:
    """The state of one pass."""

    def __init__(self, inventory: Inventory, holders: Holders | None, reserve: ReserveTimes) -> None:
        self.reservations = Reservations(inventory)
        self._inventory = inventory
        self._reserve_times = reserve
        self._future = None if holders is None else FutureCapacity(self.reservations, holders)
        self._promises: Promises | None = None
        # By shape: free capacity only shrinks, so a later equal ask fits nowhere either.
        self._unplaceable: dict[object, Unplaced] = {}

    def reserve_first(self, reserved: Sequence[Ask], promised: Iterable[PendingInstance]) -> None:
        """Reserves capacity before any placement."""
        for ask in reserved:
            if (placed := find(self._inventory, ask)) is not None:
                self.reservations.add(ask, placed)
        if self._future is not None:
            self._promises = Promises(self.reservations, self._future, promised)

    def reserve_awaited(self, ask: Ask) -> None:
        """Reserves capacity for an instance that is not created yet, where it fits once leaving holders have ended."""
        if self._future is not None and (place := self._future.after_leaving(ask, bounded=True)) is not None:
            self.reservations.add(ask, place.placed, place.victims)

    def decide(self, pending: PendingInstance) -> AdmissionDecision:
        """The decision for one instance; its place is reserved."""
        future, promises = self._future, self._promises
        if promises is not None and (own := promises.redeem(pending.ask.instance)) is not None:
            return self._redeem(pending, own, promises)
        placed = None if pending.ask.shape() in self._unplaceable else self._place(pending.ask)
        if placed is None and promises is not None:
            placed = promises.take(pending, "place", lambda: self._place(pending.ask))
            if placed is not None:
                self._unplaceable.clear()
        if placed is not None:
            return AdmissionDecision(placed)
        decision = self._explained(pending.ask)
        if future is None or promises is None:
            return AdmissionDecision(decision)
        return self._reserve_freed(future, pending, decision) or self._reserve_more(future, promises, pending, decision)

    def _place(self, ask: Ask) -> Placed | None:
        if (placed := find(self._inventory, ask)) is not None:
            self._inventory.reserve(placed, ask.deployment_uid)
        return placed

    def _redeem(self, pending: PendingInstance, own: Reservation, promises: Promises) -> AdmissionDecision:
        """Places an instance where its victims have ended, or where it fits earlier; else keeps the place for it."""
        ask = pending.ask
        place = destination(self._inventory, own.placed)
        placed = self._place(pending.bound_for(place)) or self._place(ask)
        if placed is not None:
            self._unplaceable.clear()
            promises.forget()
            return AdmissionDecision(placed)
        reason = Reason.PREEMPTING if pending.preempting else None
        admission = self._reserved(ask, own, self._explained(ask), reason, "capacity is being freed for it on")
        return replace(_freeing(admission), after_victims=own.placed, promised=place)

    def _explained(self, ask: Ask) -> Unplaced:
        """The explanation, with reason `reserved` where only reservations keep the ask from fitting."""
        shape, reservations = ask.shape(), self.reservations
        known, blocked = self._unplaceable.get(shape), reservations.block(ask)
        if known is not None and blocked == (known.reason == Reason.RESERVED):
            return replace(known, instance=ask.instance)
        decision = Unplaced(ask.instance, _explain(reservations, ask, blocked=blocked))
        if blocked:
            decision = _with_note(decision, Reason.RESERVED, reservations.message())
        self._unplaceable[shape] = decision
        return decision

    def _reserve_freed(
        self, future: FutureCapacity, pending: PendingInstance, decision: Unplaced
    ) -> AdmissionDecision | None:
        """Reserves capacity that is being freed anyway. None if it does not fit there."""
        ask, target = pending.ask, pending.relocation_target
        if target is not None and (place := future.relocation_target(target)) is not None:
            return _freeing(self._reserved(ask, place, decision, None, "relocations free capacity for it on"))
        if (place := future.after_leaving(ask, bounded=not pending.preempt)) is not None:
            reason = Reason.PREEMPTING if pending.preempting else None
            return _freeing(self._reserved(ask, place, decision, reason, "capacity is being freed for it on"))
        return None

    def _reserve_more(
        self, future: FutureCapacity, promises: Promises, pending: PendingInstance, decision: Unplaced
    ) -> AdmissionDecision:
        """Reserves capacity for an instance that does not fit where capacity is being freed for no other."""

        def search() -> AdmissionDecision | None:
            return self._reserve_freed(future, pending, decision) or self._preempt(future, pending, decision)[0]

        admission = promises.take(pending, "reserve", search)
        if admission is not None:
            self._unplaceable.clear()
            return admission
        admission, decision = self._preempt(future, pending, decision)
        if admission is not None:
            return admission
        future.enqueue(pending)
        long_wait = pending.waited_s >= self._reserve_times.after_s and not self.reservations.for_long_wait
        if decision.reason != Reason.RESERVED and long_wait:
            return self._reserve_for_long_wait(future, pending, decision)
        return AdmissionDecision(decision)

    def _preempt(
        self, future: FutureCapacity, pending: PendingInstance, decision: Unplaced
    ) -> tuple[AdmissionDecision | None, Unplaced]:
        """Chooses victims and reserves the place that they leave. Else returns the decision, with a reason if known."""
        may = pending.preempt and not pending.preempting
        if may and pending.no_preemption:
            return None, _with_note(decision, decision.reason, f"preempts nothing: {pending.no_preemption}")
        preemption = future.preempt(pending) if may else ""
        if not isinstance(preemption, Reservation):
            return None, _with_note(decision, decision.reason, preemption) if preemption else decision
        text = f"preempts {', '.join(victim.instance for victim in preemption.victims)} on"
        place = destination(self._inventory, preemption.placed)
        admission = _freeing(self._reserved(pending.ask, preemption, decision, Reason.PREEMPTING, text))
        admission = replace(admission, victims=preemption.victims, after_victims=preemption.placed, promised=place)
        return admission, decision

    def _reserve_for_long_wait(
        self, future: FutureCapacity, pending: PendingInstance, decision: Unplaced
    ) -> AdmissionDecision:
        """Reserves capacity of holders that end by themselves, else for a bounded time of servers."""
        text = "pending for long, so capacity is reserved for it"
        for_s = self._reserve_times.for_s
        if (place := future.earliest(pending.ask, servers=False)) is not None:
            self.reservations.for_long_wait = True
            return self._reserved(pending.ask, place, decision, None, f"{text} on")
        if pending.reserved_s is not None and pending.reserved_s >= for_s:
            note = f"no longer reserved for it after {_duration(for_s)}: servers hold what it needs"
            return AdmissionDecision(_with_note(decision, None, note))
        if (place := future.earliest(pending.ask, servers=True)) is None:
            return AdmissionDecision(decision)
        self.reservations.for_long_wait = True
        text = f"{text} for at most {_duration(for_s)}, since servers hold it, on"
        return replace(self._reserved(pending.ask, place, decision, None, text), awaits_servers=True)

    def _reserved(
        self, ask: Ask, place: Reservation, decision: Unplaced, reason: Reason | None, text: str
    ) -> AdmissionDecision:
        self.reservations.add(ask, place.placed, place.victims)
        names = workers_of(self._inventory, place.placed)
        note = f"{text} {', '.join(names)}"
        return AdmissionDecision(_with_note(decision, reason, note), reserved_on=names)


def _explain(reservations: Reservations, ask: Ask, *, blocked: bool) -> Explain:
    """The explanation. Reserved capacity counts as free, or, where the ask would fit there, as `reserved`."""
    if not blocked:
        with reservations.released():
            return explain_unplaced(reservations.inventory, ask)
    explain = explain_unplaced(reservations.inventory, ask)
    with reservations.released():
        placed = find(reservations.inventory, ask)
    names = worker_names(reservations.inventory, placed) if placed is not None else ""
    nearest = NearestMiss(worker=names, code=Reason.RESERVED, message=f"{names} has enough, but it is reserved")
    return msgspec.structs.replace(explain, nearest=nearest, message=f"0/{explain.workers} fit")


def _duration(seconds: float) -> str:
    unit, length = next((pair for pair in _SECONDS_OF if seconds >= pair[1]), _SECONDS_OF[-1])
    return f"{seconds / length:g} {unit}"


def _freeing(admission: AdmissionDecision) -> AdmissionDecision:
    """The same, marked as placed once capacity has been freed."""
    decision = admission.decision
    if not isinstance(decision, Unplaced):
        return admission
    explain = msgspec.structs.replace(decision.explain, freeing=True)
    return replace(admission, decision=replace(decision, explain=explain))


def _with_note(decision: Unplaced, reason: Reason | None, note: str) -> Unplaced:
    return replace(decision, explain=with_note(decision.explain, note), reason=reason)
