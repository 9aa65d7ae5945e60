"""Places of one queue over several gateways: never more than its length, all for one that needs them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.queue_places import (
    EXPIRES_S,
    Holder,
    PlacesAsk,
    PlacesGrant,
    lease_places,
    part_of_length,
    present,
)
from gateway.queueing.queue_leases import QueueLeases
from support.profiles import examples

UID = "uid-m"


class World:
    """Gateways before one store, with the requests that wait at each."""

    def __init__(self, length: int, gateways: int) -> None:
        self.length = length
        self.now = 100.0
        self.rows: dict[str, tuple[int, int, float]] = {}  # held, need, when
        self.places: dict[str, QueueLeases[int]] = {}
        self.waits: dict[str, list[int]] = {}
        self.asked = 0
        self.number = 0
        for rank in range(gateways):
            self.open(f"g{rank}", rank, gateways)

    def open(self, name: str, rank: int, gateways: int) -> None:
        places: QueueLeases[int] = QueueLeases(lambda: self.now, lambda: None)
        places.rank, places.gateways = rank, gateways
        self.places[name], self.waits[name] = places, []

    def lease(self, name: str, asks: Sequence[PlacesAsk]) -> list[PlacesGrant]:
        grants = []
        for ask in asks:
            holders = {other: Holder(h, n, self.now - at) for other, (h, n, at) in self.rows.items() if other != name}
            grant = lease_places(ask, present(holders, in_touch_s=100.0))
            self.rows[name] = (grant.held, ask.need, self.now)
            if not (grant.held or ask.need):
                del self.rows[name]
            grants.append(grant)
        return grants

    def talk(self, name: str, *, answered: bool = True) -> None:
        self.now += 0.001
        places, asked_at = self.places[name], self.now
        grants = self.lease(name, places.asks())
        if answered:
            self.refuse(name, places.granted(grants, asked_at))
        else:
            self.refuse(name, places.unanswered())

    def refuse(self, name: str, refused: Sequence[tuple[str, int]]) -> None:
        for uid, request in refused:
            self.places[name].leave(uid, request)
            self.waits[name].remove(request)

    def come(self, name: str) -> bool:
        self.now += 0.001
        self.number += 1
        if self.places[name].join(UID, self.number, self.length):
            self.waits[name].append(self.number)
            return True
        return False

    def go(self, name: str) -> None:
        if self.waits[name]:
            self.places[name].leave(UID, self.waits[name].pop(0))

    def placed(self) -> int:
        found: list[Any] = [one._of[UID].placed for one in self.places.values() if UID in one._of]
        return sum(map(len, found))


steps = st.lists(
    st.tuples(st.sampled_from(["come", "go", "talk", "lost", "wait"]), st.integers(0, 3)), min_size=1, max_size=120
)


@given(st.integers(1, 9), st.integers(1, 4), steps)
@examples(300)
def test_never_more_have_a_place_than_the_queue_is_long(
    length: int, gateways: int, steps: list[tuple[str, int]]
) -> None:
    world = World(length, gateways)
    for what, index in steps:
        name = f"g{index % gateways}"
        if what == "come":
            world.come(name)
        elif what == "go":
            world.go(name)
        elif what == "talk":
            world.talk(name)
        elif what == "lost":  # the store has taken the ask, and its answer is lost
            asks = world.places[name].asks()
            world.lease(name, asks)
        else:
            world.now += 0.3
        assert world.placed() <= length
        assert sum(held for held, _, _ in world.rows.values()) <= length


@given(st.integers(1, 9), st.integers(2, 4), steps)
@examples(150)
def test_one_gateway_gets_all_places_once_the_others_wait_for_nothing(
    length: int, gateways: int, steps: list[tuple[str, int]]
) -> None:
    """Whatever came before: after one exchange of each, and at once if none held any."""
    world = World(length, gateways)
    for what, index in steps:
        {"come": world.come, "go": world.go}.get(what, world.talk)(f"g{index % gateways}")
    for name, waits in world.waits.items():
        while waits:
            world.go(name)
        world.talk(name)
    world.now += 1.0
    assert [world.come("g0") for _ in range(length + 1)] == [True] * length + [False]
    world.talk("g0")
    assert world.placed() == length


@given(st.integers(1, 40), st.integers(2, 4))
@examples()
def test_each_gateway_gets_its_fair_share_where_all_lack_places(length: int, gateways: int) -> None:
    """One that came first and has all of them gives up what exceeds its share as its requests go on."""
    world = World(length, gateways)
    for _ in range(length):
        world.come("g0")
    world.talk("g0")
    for _ in range(2 * length + 4):  # each queue is always asked for more than it has
        for name in world.places:
            world.now += 0.1
            world.go(name)
            for _ in range(length):
                world.come(name)
            world.talk(name)
    for name in world.places:
        world.now += 0.1
        world.talk(name)
    shares = [held for held, _, _ in world.rows.values()]
    assert sum(shares) <= length
    if length >= gateways:
        assert min(shares) >= length // gateways - 1
        assert len(shares) == gateways


def test_what_a_dead_gateway_held_is_the_others_after_a_while_unless_all_were_away() -> None:
    holders = {"dead": Holder(4, 4, EXPIRES_S + 1), "lives": Holder(1, 1, 0.5)}
    assert set(present(holders, in_touch_s=60.0)) == {"lives"}
    assert set(present(holders, in_touch_s=3.0)) == {"dead", "lives"}


@given(st.integers(0, 100), st.integers(1, 9))
@examples()
def test_the_parts_of_gateways_that_cannot_ask_add_up_to_the_length(length: int, gateways: int) -> None:
    parts = [part_of_length(length, rank, gateways) for rank in range(gateways)]
    assert sum(parts) == length
    assert max(parts) - min(parts) <= 1


def test_without_the_store_each_gateway_goes_on_with_its_part() -> None:
    world = World(4, 2)
    assert [world.come("g1") for _ in range(3)] == [True] * 3
    world.refuse("g1", world.places["g1"].unanswered())
    assert len(world.waits["g1"]) == 2, "the third waited for a place"
    assert not world.come("g1")
    world.talk("g1")
    assert world.come("g1")
    world.talk("g1")
    assert world.placed() == 3


@given(st.integers(1, 9), st.integers(2, 4), steps)
@examples(150)
def test_a_gateway_that_is_cut_off_alone_lets_no_more_wait_than_do(
    length: int, gateways: int, steps: list[tuple[str, int]]
) -> None:
    """The others count it gone, and have all places: only what it had is beyond the length, until that has gone on."""
    world = World(length, gateways)
    for _ in range(length):
        world.come("g0")
    world.talk("g0")
    del world.rows["g0"]  # it has expired
    had = world.placed()
    world.refuse("g0", world.places["g0"].unanswered(alone=True))
    for what, index in steps:
        name = f"g{index % gateways}"
        if what == "come":
            world.come(name)
        elif what == "go":
            world.go(name)
        elif name == "g0":
            world.refuse(name, world.places[name].unanswered(alone=True))
        else:
            world.talk(name)
        kept = len(world.waits["g0"])
        assert kept <= had
        had = kept
        assert world.placed() <= length + kept
    while world.waits["g0"]:
        world.go("g0")
    world.talk("g0")
    assert (world.places["g0"].away, world.places["g0"].alone) == (False, False)
    assert world.placed() <= length


def test_a_request_that_came_after_the_ask_is_not_refused_by_its_answer() -> None:
    """The clock of an event loop stands still within a round."""
    world = World(4, 2)
    places = world.places["g0"]
    assert places.join(UID, 1, 4)
    asks, asked_at = places.asks(), world.now
    assert places.join(UID, 2, 4)
    assert places.granted(world.lease("g0", asks), asked_at) == []
    assert places.granted(world.lease("g0", places.asks()), world.now) == []
    assert world.placed() == 2
