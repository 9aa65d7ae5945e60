"""Admission: the order in which pending instances are placed, and what is reserved for those that do not fit.

Instances are placed by priority, then age. A smaller one may be backfilled ahead of a larger one that does not fit.
Reservations keep this from lasting for ever. Capacity is reserved for two kinds of instances:

- the one that has been pending longest among the highest priority, after `reserve_after_s`, at the place for which the
  fewest holders have to end;
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
from controller.scheduling.admission.reservation import Reservation, Reservations, worker_names
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import find, place_one
from schemas.placement_reasons import Reason

RESERVE_AFTER_S: Final = 60.0


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
    """The decision for one pending instance. `victims`: the holders that it preempts with this pass."""

    decision: Decision
    victims: tuple[Holder, ...] = ()


def admit(
    inventory: Inventory,
    waiting: Iterable[PendingInstance],
    holders: Holders | None,
    *,
    reserve_after_s: float,
    reserved: Sequence[Ask] = (),
    max_preemptions: float = math.inf,
) -> Generator[AdmissionDecision, None, None]:
    """Decides in the order given, one instance per iteration, and reserves placed ones as `place` does.

    The caller must close the generator unless it is exhausted: closing takes the reservations off the inventory.

    Args:
        inventory: what is free. The caller must not change it before the last decision.
        waiting: the pending instances, by priority and age.
        holders: the instances with claims. None: not read, so nothing is reserved.
        reserve_after_s: how long an instance has to be pending before capacity is reserved for it.
        reserved: asks for which capacity is reserved before anything is placed, where they fit.
        max_preemptions: number of preempting instances after which it ends, since choosing victims takes long.

    Yields:
        One decision per instance, in the same order. Those that are missing at the end were not looked at.
    """
    inventory.begin_pass()
    reservations = Reservations(inventory)
    future = None if holders is None else FutureCapacity(inventory, holders)
    unplaceable: dict[object, Unplaced] = {}  # by shape: free capacity only shrinks, so a later equal ask fits nowhere
    try:
        for ask in reserved:
            if (placed := find(inventory, ask)) is not None:
                reservations.add(ask, placed)
        for pending in waiting:
            decision = _decide(inventory, pending.ask, unplaceable)
            if isinstance(decision, Placed):
                yield AdmissionDecision(decision)
                continue
            if future is None:
                admission = AdmissionDecision(_blocked_by(reservations, pending.ask, decision))
            else:
                admission = _reserve(reservations, future, pending, decision, reserve_after_s)
            yield admission
            max_preemptions -= bool(admission.victims)
            if max_preemptions <= 0:
                return
    finally:
        reservations.release()


def _decide(inventory: Inventory, ask: Ask, unplaceable: dict[object, Unplaced]) -> Decision:
    shape = ask.shape()
    if shape in unplaceable:
        return replace(unplaceable[shape], instance=ask.instance)
    decision = place_one(inventory, ask)
    if isinstance(decision, Unplaced):
        unplaceable[shape] = decision
    return decision


def _reserve(
    reservations: Reservations,
    future: FutureCapacity,
    pending: PendingInstance,
    decision: Unplaced,
    reserve_after_s: float,
) -> AdmissionDecision:
    """Reserves capacity for an instance that does not fit now, where it may have a reservation."""
    inventory, ask, target = reservations.inventory, pending.ask, pending.relocation_target
    if target is not None and (placed := future.relocation_target(target)) is not None:
        reservations.add(ask, placed)
        note = f"relocations free capacity for it on {worker_names(inventory, placed)}"
        return AdmissionDecision(_with_note(decision, None, note))
    if pending.preempt and (placed := future.after_leaving(ask)) is not None:
        reservations.add(ask, placed)
        note = f"capacity is being freed for it on {worker_names(inventory, placed)}"
        return AdmissionDecision(_with_note(decision, Reason.PREEMPTING if pending.preempting else None, note))
    preemption = future.preempt(pending) if pending.preempt and not pending.preempting else ""
    if isinstance(preemption, Reservation):
        reservations.add(ask, preemption.placed)
        names = ", ".join(victim.instance for victim in preemption.victims)
        note = f"preempts {names} on {worker_names(inventory, preemption.placed)}"
        return AdmissionDecision(_with_note(decision, Reason.PREEMPTING, note), preemption.victims)
    if preemption:
        decision = _with_note(decision, None, preemption)
    decision = _blocked_by(reservations, ask, decision)
    long_wait = pending.waited_s >= reserve_after_s and not reservations.for_long_wait
    if decision.reason != Reason.RESERVED and long_wait and (placed := future.earliest(ask)) is not None:
        reservations.add(ask, placed)
        reservations.for_long_wait = True
        note = f"pending for long, so capacity is reserved for it on {worker_names(inventory, placed)}"
        return AdmissionDecision(_with_note(decision, None, note))
    future.enqueue(pending)
    return AdmissionDecision(decision)


def _blocked_by(reservations: Reservations, ask: Ask, decision: Unplaced) -> Unplaced:
    """The decision, with reason `reserved` where only reservations keep the ask from fitting."""
    return _with_note(decision, Reason.RESERVED, reservations.message()) if reservations.block(ask) else decision


def _with_note(decision: Unplaced, reason: Reason | None, note: str) -> Unplaced:
    explain = decision.explain
    changed = explain.model_copy(update={"message": f"{explain.message}; {note}", "note": note})
    return replace(decision, explain=changed, reason=reason)
