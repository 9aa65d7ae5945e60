"""The order in which those who wait are served, and for whom room is kept meanwhile.

Whoever comes is served by priority, then age, and a small one may pass a big one that does not fit. So that it does not
pass it for ever, room is kept: for the one who has waited longest of the highest priority, once that is long enough,
where the fewest have to end until it fits; and for who may push others out, where room is being freed or is made free.
What is kept counts as claimed for all that come later in the order, for this one pass: the next works it out anew, so
nothing of it can be forgotten or left behind. No room is kept for what would not fit on empty workers.
"""

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Protocol

from controller.domain.holdings import Holder, Holders
from controller.domain.pending import PendingInstance
from controller.domain.placement import Ask, Decision, Placed, Unplaced
from controller.scheduling.admission.preempt import Room, await_ends, lifted, preempt_victims
from controller.scheduling.inventory.holders import Pool
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.search.place import find, place_one
from schemas.reasons import Reason

RESERVE_AFTER_S: Final = 60.0


class Patience(Protocol):
    """What of one who waits tells whether room may be made or kept for it; see `PendingInstance`."""

    @property
    def preempt(self) -> bool: ...  # noqa: D102
    @property
    def waited_s(self) -> float: ...  # noqa: D102
    @property
    def promised(self) -> object: ...  # noqa: D102


def may_have_room(one: Patience, reserve_after_s: float) -> bool:
    """Whether, should it not fit, room may be made or kept for it, for which the occupants have to be known."""
    return one.preempt or one.promised is not None or one.waited_s >= reserve_after_s


@dataclass(frozen=True, slots=True)
class Decided:
    """What becomes of one who waits. `leave`: those that it pushes out with this pass."""

    decision: Decision
    leave: tuple[Holder, ...] = ()


@dataclass(slots=True)
class _Kept:
    """The room that is kept in this pass, and for whom."""

    inventory: Inventory
    rooms: list[tuple[Ask, Placed]] = field(default_factory=list)
    reserved: bool = False  # for somebody who has waited long
    in_the_way: dict[object, bool] = field(default_factory=dict)  # by shape: thousands may ask the same

    def keep(self, ask: Ask, placed: Placed) -> None:
        self.inventory.reserve(placed, ask.deployment_uid)
        self.rooms.append((ask, placed))
        self.in_the_way.clear()

    def release(self) -> None:
        for _, placed in self.rooms:
            self.inventory.unreserve(placed)

    def again(self) -> None:
        for ask, placed in self.rooms:
            self.inventory.reserve(placed, ask.deployment_uid)

    def stands_in_the_way(self, ask: Ask) -> bool:
        """Whether the ask would fit, were it not for what is kept."""
        shape = ask.shape()
        if self.rooms and shape not in self.in_the_way:
            self.release()
            try:
                self.in_the_way[shape] = find(self.inventory, ask) is not None
            finally:
                self.again()
        return self.in_the_way.get(shape, False)


class _Crowd:
    """The occupants as the pass goes on. What is worked out of them by shape holds for the rest of it.

    A pass only takes, so who finds no way at one time finds none later, nor does a lower one.
    """

    def __init__(self, inventory: Inventory, holders: Holders) -> None:
        self._inventory = inventory
        self._staying = holders.staying
        self._leaving = list(holders.leaving)
        self._moving = list(holders.moving)
        self._no_push: dict[object, tuple[int, str]] = {}  # by shape: for nobody up to this priority, and what to tell
        self._nobody_to_await: set[object] = set()
        self._before: list[PendingInstance] = []  # those who were served and wait on, and for whom no room is kept

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self._inventory, self._staying)

    def coming(self, ask: Ask) -> Placed | None:
        """Where it fits once those that are leaving are gone."""
        with lifted(self._inventory, self._leaving):
            return find(self._inventory, ask)

    def waits_on(self, pending: PendingInstance) -> None:
        """Somebody is left waiting, and comes before all that are no higher in the next pass too."""
        self._before.append(pending)

    def push(self, pending: PendingInstance) -> Room | str:
        """Whom it pushes out; those then count as leaving. Else what to tell of that, which may be nothing."""
        shape = pending.ask.shape()
        upto, why = self._no_push.get(shape, (-1, ""))
        if pending.priority <= upto:
            return why
        with lifted(self._inventory, self._leaving):
            room = preempt_victims(self._inventory, pending.ask, self._pool, below=pending.priority)
            first = self._outrun_by(pending, room) if room is not None else None
        if room is None or first is not None:
            why = "" if first is None else f"pushes nobody out, since {first} comes before it and would take the room"
            self._no_push[shape] = (pending.priority, why)
            return why
        self._pool.remove(room.leave)
        self._leaving += room.leave
        self._moving = [one for one in self._moving if one not in room.leave]
        return room

    def _outrun_by(self, pending: PendingInstance, room: Room) -> str | None:
        """Who comes before and would take the room, so that others would leave in vain."""
        taken: list[Placed] = []
        hopeless: set[object] = set()
        with lifted(self._inventory, room.leave):
            try:
                for other in (before.ask for before in self._before if before.priority >= pending.priority):
                    shape = other.shape()
                    placed = None if shape in hopeless else find(self._inventory, other)
                    if placed is None:
                        hopeless.add(shape)
                        continue
                    self._inventory.reserve(placed, other.deployment_uid)
                    taken.append(placed)
                    if find(self._inventory, pending.ask) is None:
                        return other.instance
            finally:
                for placed in reversed(taken):
                    self._inventory.unreserve(placed)
        return None

    def promised(self, ask: Ask) -> Placed | None:
        """The place that this asks for, if it is free once those that are moved are gone."""
        with lifted(self._inventory, [*self._leaving, *self._moving]):
            return find(self._inventory, ask)

    def nearest(self, ask: Ask) -> Placed | None:
        """Where the fewest have to end until it fits."""
        shape = ask.shape()
        if shape in self._nobody_to_await:
            return None
        with lifted(self._inventory, self._leaving):
            placed = find(self._inventory, ask)
            if placed is None and (room := await_ends(self._inventory, ask, self._pool)) is not None:
                placed = room.placed
        if placed is None:
            self._nobody_to_await.add(shape)
        return placed


def serve(
    inventory: Inventory,
    waiting: Iterable[PendingInstance],
    holders: Holders | None,
    *,
    reserve_after_s: float,
    ahead: Sequence[Ask] = (),
    most_pushes: float = math.inf,
) -> Generator[Decided, None, None]:
    """Decides in the order given, one whenever it is asked for the next, reserving what is placed as `place` does.

    Whoever does not ask for all of them closes it, so that no room stays kept.

    Args:
        inventory: what is free; nobody else changes it until the last is decided.
        waiting: by priority and age.
        holders: whose claims they are; None: not read, so no room is kept.
        reserve_after_s: for how long one has to wait until room is kept for it.
        ahead: for whom room is kept before anybody is served, where there is some.
        most_pushes: after so many who push others out it ends, since to find out whom takes long.

    Yields:
        One for each, in the same order; those that are missing at the end were not looked at.
    """
    inventory.begin_pass()
    kept = _Kept(inventory)
    crowd = None if holders is None else _Crowd(inventory, holders)
    misfits: dict[object, Unplaced] = {}  # by shape: as room only dwindles, what does not fit will not fit later
    try:
        for ask in ahead:
            if (placed := find(inventory, ask)) is not None:
                kept.keep(ask, placed)
        for pending in waiting:
            decision = _decide(inventory, pending.ask, misfits)
            if isinstance(decision, Placed):
                yield Decided(decision)
                continue
            if crowd is None:
                served = Decided(_because_of(kept, pending.ask, decision))
            else:
                served = _keep_room(kept, pending, decision, crowd, reserve_after_s)
            yield served
            most_pushes -= bool(served.leave)
            if most_pushes <= 0:
                return
    finally:
        kept.release()


def _decide(inventory: Inventory, ask: Ask, misfits: dict[object, Unplaced]) -> Decision:
    shape = ask.shape()
    if shape in misfits:
        return replace(misfits[shape], instance=ask.instance)
    decision = place_one(inventory, ask)
    if isinstance(decision, Unplaced):
        misfits[shape] = decision
    return decision


def _keep_room(
    kept: _Kept, pending: PendingInstance, decision: Unplaced, crowd: _Crowd, reserve_after_s: float
) -> Decided:
    """What is kept for one that does not fit."""
    inventory, ask = kept.inventory, pending.ask
    if pending.promised is not None and (placed := crowd.promised(pending.promised)) is not None:
        kept.keep(ask, placed)
        text = f"others are moved so that it fits on {_names(inventory, placed)}"
        return Decided(_told(decision, None, text))
    if pending.preempt and (placed := crowd.coming(ask)) is not None:
        kept.keep(ask, placed)
        text = f"room is being freed for it on {_names(inventory, placed)}"
        return Decided(_told(decision, Reason.PREEMPTING if pending.pushing else None, text))
    room = crowd.push(pending) if pending.preempt and not pending.pushing else ""
    if isinstance(room, Room):
        kept.keep(ask, room.placed)
        names = ", ".join(o.instance for o in room.leave)
        text = f"pushes out {names} on {_names(inventory, room.placed)}"
        return Decided(_told(decision, Reason.PREEMPTING, text), room.leave)
    if room:
        decision = _told(decision, None, room)
    decision = _because_of(kept, ask, decision)
    if decision.reason == Reason.RESERVED:
        crowd.waits_on(pending)
        return Decided(decision)
    if pending.waited_s >= reserve_after_s and not kept.reserved and (placed := crowd.nearest(ask)) is not None:
        kept.keep(ask, placed)
        kept.reserved = True
        text = f"has waited long, so room is kept for it on {_names(inventory, placed)}"
        return Decided(_told(decision, None, text))
    crowd.waits_on(pending)
    return Decided(decision)


def _because_of(kept: _Kept, ask: Ask, decision: Unplaced) -> Unplaced:
    """The decision with its true reason, where it is only that room is kept for others."""
    return _told(decision, Reason.RESERVED, _for_whom(kept)) if kept.stands_in_the_way(ask) else decision


def _told(decision: Unplaced, reason: Reason | None, text: str) -> Unplaced:
    explain = decision.explain
    told = explain.model_copy(update={"message": f"{explain.message}; {text}", "note": text})
    return replace(decision, explain=told, reason=reason)


def _for_whom(kept: _Kept) -> str:
    rooms = (f"{ask.instance} on {_names(kept.inventory, placed)}" for ask, placed in kept.rooms)
    return f"it would fit, but room is kept for {', '.join(rooms)}"


def _names(inventory: Inventory, placed: Placed) -> str:
    return ", ".join(inventory.worker(worker).name for worker in placed.workers)
