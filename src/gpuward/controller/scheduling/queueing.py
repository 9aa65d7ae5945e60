"""The order in which those who wait are served, and for whom room is kept meanwhile.

Whoever comes is served by priority, then age, and a small one may pass a big one that does not fit. So that it does not
pass it for ever, room is kept: for the one who has waited longest of the highest priority, once that is long enough,
where the fewest have to end until it fits; and for who may push others out, where room is being freed or is made free.
What is kept counts as claimed for all that come later in the order, for this one pass: the next works it out anew, so
nothing of it can be forgotten or left behind. No room is kept for what would not fit on empty workers.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuward.controller.domain.placement import Ask, Decision, Placed, Unplaced
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.place import find, place_one
from gpuward.controller.scheduling.preempt import Occupant, Room, lifted, make_room
from gpuward.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits.

    Attributes:
        ask: what for.
        priority: of its deployment.
        preempt: may push out lower ones.
        waited_s: since it waits.
        pushing: those whom it pushed out have not left yet.
    """

    ask: Ask
    priority: int = 0
    preempt: bool = False
    waited_s: float = 0.0
    pushing: bool = False


@dataclass(frozen=True, slots=True)
class Occupants:
    """Who holds claims: those that would stay, and those that are leaving already."""

    staying: tuple[Occupant, ...] = ()
    leaving: tuple[Occupant, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """What becomes of one who waits. `leave`: those that it pushes out with this pass."""

    decision: Decision
    leave: tuple[Occupant, ...] = ()


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


def serve(
    inventory: Inventory, waiting: Iterable[Waiter], occupants: Occupants | None, *, reserve_after_s: float
) -> Generator[Served, None, None]:
    """Decides all in the order given, one whenever it is asked for the next, reserving what is placed as `place` does.

    Whoever does not ask for all of them closes it, so that no room stays kept.

    Args:
        inventory: what is free; nobody else changes it until the last is decided.
        waiting: by priority and age.
        occupants: whose claims they are; None: not read, so no room is kept.
        reserve_after_s: for how long one has to wait until room is kept for it.

    Yields:
        One for each, in the same order.
    """
    inventory.begin_pass()
    kept = _Kept(inventory)
    misfits: dict[object, Unplaced] = {}  # by shape: as room only dwindles, what does not fit will not fit later
    try:
        for waiter in waiting:
            decision = _decide(inventory, waiter.ask, misfits)
            if isinstance(decision, Placed) or occupants is None:
                yield Served(decision)
                continue
            one, occupants = _keep_room(kept, waiter, decision, occupants, reserve_after_s)
            yield one
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
    kept: _Kept, waiter: Waiter, decision: Unplaced, occupants: Occupants, reserve_after_s: float
) -> tuple[Served, Occupants]:
    """What is kept for one that does not fit, and the occupants with those gone over who now leave for it."""
    inventory, ask = kept.inventory, waiter.ask
    if kept.stands_in_the_way(ask):
        return Served(_told(decision, Reason.RESERVED, _for_whom(kept))), occupants
    if waiter.preempt and (placed := _coming(inventory, ask, occupants)) is not None:
        kept.keep(ask, placed)
        text = f"room is being freed for it on {_names(inventory, placed)}"
        return Served(_told(decision, Reason.PREEMPTING if waiter.pushing else None, text)), occupants
    if waiter.preempt and not waiter.pushing and (room := _push(inventory, waiter, occupants)) is not None:
        kept.keep(ask, room.placed)
        names = ", ".join(o.instance for o in room.leave)
        text = f"pushes out {names} on {_names(inventory, room.placed)}"
        return Served(_told(decision, Reason.PREEMPTING, text), room.leave), _gone_over(occupants, room.leave)
    if waiter.waited_s >= reserve_after_s and not kept.reserved:
        room = _nearest(inventory, ask, occupants)
        if room is not None:
            kept.keep(ask, room.placed)
            kept.reserved = True
            text = f"has waited long, so room is kept for it on {_names(inventory, room.placed)}"
            return Served(_told(decision, None, text)), occupants
    return Served(decision), occupants


def _coming(inventory: Inventory, ask: Ask, occupants: Occupants) -> Placed | None:
    """Where it fits once those that are leaving are gone."""
    with lifted(inventory, occupants.leaving):
        return find(inventory, ask)


def _push(inventory: Inventory, waiter: Waiter, occupants: Occupants) -> Room | None:
    lower = [o for o in occupants.staying if o.priority < waiter.priority]
    with lifted(inventory, occupants.leaving):
        return make_room(inventory, waiter.ask, lower)


def _nearest(inventory: Inventory, ask: Ask, occupants: Occupants) -> Room | None:
    """Where the fewest have to end until it fits, whatever their priority, since none of them is made to."""
    with lifted(inventory, occupants.leaving):
        placed = find(inventory, ask)
        if placed is not None:
            return Room(placed)
        return make_room(inventory, ask, occupants.staying, ranked=False)


def _gone_over(occupants: Occupants, leave: Sequence[Occupant]) -> Occupants:
    staying = tuple(o for o in occupants.staying if o not in leave)
    return Occupants(staying, (*occupants.leaving, *leave))


def _told(decision: Unplaced, reason: Reason | None, text: str) -> Unplaced:
    explain = decision.explain
    told = explain.model_copy(update={"message": f"{explain.message}; {text}", "note": text})
    return replace(decision, explain=told, reason=reason)


def _for_whom(kept: _Kept) -> str:
    rooms = (f"{ask.instance} on {_names(kept.inventory, placed)}" for ask, placed in kept.rooms)
    return f"it would fit, but room is kept for {', '.join(rooms)}"


def _names(inventory: Inventory, placed: Placed) -> str:
    return ", ".join(inventory.worker(worker).name for worker in placed.workers)
