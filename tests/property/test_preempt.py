"""A preemption's victims: strictly lower priorities, enough of them and none too many, whatever runs and is asked."""

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.admission.admit import ReserveTimes, admit
from controller.scheduling.admission.victims import find_victims, preemption_cost
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.search.cached_search import find
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet
from support.profiles import examples

SIZES = st.sampled_from([8 * GIB, 16 * GIB])
LAYOUTS = st.one_of(
    st.builds(Layout, st.integers(1, 3), st.integers(1, 16).map(lambda g: g * GIB), st.booleans()),
    st.integers(1, 2).map(lambda n: Layout(2 * n, 6 * GIB, False, workers=2)),
)


@dataclass(frozen=True)
class Scene:
    """What runs, and the ask of an instance of priority 5."""

    fleet: Fleet
    running: tuple[tuple[Layout, int], ...]
    ask: Ask

    def build(self, shuffle: int = 0) -> tuple[Inventory, list[Holder]]:
        inventory = self.fleet.inventory(shuffle)
        asks = [Ask(f"r{n}", f"d{n}", (layout,)) for n, (layout, _) in enumerate(self.running)]
        holders = [
            Holder(
                d.instance, self.running[int(d.instance[1:])][1], float(d.instance[1:]), frozenset(d.workers), d.claims
            )
            for d in place(inventory, asks)
            if isinstance(d, Placed)
        ]
        Random(shuffle).shuffle(holders)  # noqa: S311 - an order, not a secret
        return inventory, holders


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    fleet = Fleet()
    for number in range(draw(st.integers(1, 3))):
        fleet.add(f"w{number}", draw(st.lists(SIZES, min_size=1, max_size=4)), host_memory=draw(SIZES))
    running = draw(st.lists(st.tuples(LAYOUTS, st.integers(0, 7)), max_size=9))
    fields: dict[str, Any] = {"host_memory_mib": draw(st.sampled_from([0, GIB]))}
    layouts = draw(st.lists(LAYOUTS, min_size=1, max_size=2, unique=True))
    return Scene(fleet, tuple(running), Ask("p", "dp", tuple(layouts), **fields))


def arrays(inventory: Inventory) -> list[list[int]]:
    gpus, workers = inventory.gpus, inventory.workers
    return [
        np.asarray(a).tolist()
        for a in (gpus.claimed, gpus.claims, gpus.exclusive, gpus.free, gpus.whole, workers.memory_claimed)
    ]


@given(scenes())
@examples()
def test_victims_are_enough_and_none_is_needless(scene: Scene) -> None:
    inventory, holders = scene.build()
    lower = [o for o in holders if o.priority < 5]
    before = arrays(inventory)
    if find(inventory, scene.ask) is not None:
        return
    reservation = find_victims(inventory, scene.ask, lower)
    assert arrays(inventory) == before
    with without(inventory, lower):
        assert (reservation is None) == (find(inventory, scene.ask) is None)
    if reservation is None:
        return
    assert set(reservation.victims) <= set(lower)
    assert reservation.victims
    with without(inventory, reservation.victims):
        assert find(inventory, scene.ask) == reservation.placed
    for spared in reservation.victims:
        with without(inventory, [o for o in reservation.victims if o != spared]):
            assert find(inventory, scene.ask) is None
    highest = max(o.priority for o in reservation.victims)
    with without(inventory, [o for o in lower if o.priority < highest]):
        assert find(inventory, scene.ask) is None
    assert arrays(inventory) == before


@given(scenes(), st.data())
@examples(60)
def test_no_cheaper_victims_on_one_worker(scene: Scene, data: st.DataObject) -> None:
    """Against all sets of holders, for asks of one worker: there the choice is exact."""
    inventory, found = scene.build()
    if any(layout.workers > 1 for layout in scene.ask.layouts) or find(inventory, scene.ask) is not None:
        return
    holders = [
        replace(o, task=data.draw(st.booleans()), movable=data.draw(st.booleans()), lost_s=data.draw(st.floats(0, 9)))
        for o in found
        if o.priority < 5
    ]
    cheapest = None
    for size in range(1, len(holders) + 1):
        for some in combinations(holders, size):
            if cheapest is None or preemption_cost(some) < cheapest:
                with without(inventory, some):
                    cheapest = preemption_cost(some) if find(inventory, scene.ask) is not None else cheapest
    reservation = find_victims(inventory, scene.ask, holders)
    assert cheapest == (None if reservation is None else preemption_cost(reservation.victims))


@given(scenes(), st.integers(1, 2**16))
@examples()
def test_the_order_of_holders_changes_nothing(scene: Scene, seed: int) -> None:
    first, second = (find_victims(i, scene.ask, o) for i, o in (scene.build(), scene.build(seed)))
    assert first == second


@given(scenes())
@examples(50)
def test_nothing_is_preempted_for_what_fits_or_may_not_preempt(scene: Scene) -> None:
    inventory, holders = scene.build()
    fits = find(inventory, scene.ask) is not None
    for preempt in (True, False):
        (admission,) = admit(
            inventory,
            [PendingInstance(scene.ask, 5, preempt=preempt)],
            Holders(tuple(holders)),
            reserve=ReserveTimes(60),
        )
        assert isinstance(admission.decision, Placed) == fits
        if fits or not preempt:
            assert admission.victims == ()
        assert all(o.priority < 5 for o in admission.victims)
        inventory.rollback()
