"""Slots of computations, under a fake clock with simulated children: order, sharing, the LIFO slot, bounds."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from controller.runtime.clock import SystemClock
from controller.runtime.computations import Computations
from controller.runtime.outcome import RetryableError
from runtime.computation_witness import Witness, sleeping

pytestmark = pytest.mark.looptime

Make = Callable[..., Computations]


class Children:
    """Simulated children: each takes `loading_s` to begin, then as long as its payload says, and a while to end."""

    def __init__(self) -> None:
        self.started: list[float] = []
        self.kills = 0
        self.loading_s = 0.0

    async def run(
        self,
        _target: str,
        payload: Any,
        *,
        deadline_s: float,
        memory_bytes: int,
        on_working: Callable[[], None],
        **_: Any,
    ) -> Any:
        assert deadline_s > 0
        assert memory_bytes > 0
        self.started.append(payload)
        try:
            await asyncio.sleep(self.loading_s)
            on_working()
            await asyncio.sleep(abs(payload))
        except asyncio.CancelledError:
            self.kills += 1
            await asyncio.sleep(0.01)
            raise
        if payload < 0:
            raise ConnectionError("the model's host is away")
        return payload


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def children() -> Children:
    return Children()


@pytest.fixture
async def make(witness: Witness, children: Children) -> AsyncIterator[Make]:
    made = []

    def build(pool_size: int, **more: Any) -> Computations:
        made.append(
            Computations(
                witness.on_done,
                clock=SystemClock(),
                metrics=witness,
                pool_size=pool_size,
                runner=children.run,
                **more,
            )
        )
        return made[-1]

    yield build
    for computations in made:
        await computations.aclose()
        assert computations.in_flight == computations.waiting == 0
    assert witness.balanced()
    assert witness.children == 0


async def test_a_result_is_reported_to_its_owner_once(make: Make, witness: Witness) -> None:
    computations = make(2)
    computations.start("a", sleeping("h", 1))
    computations.start("a", sleeping("h", 1))
    assert computations.in_flight == 1
    await asyncio.sleep(5)
    assert witness.reported == [("a", "h", 1)]
    assert witness.counts == {"started": 1, "completed": 1}


async def test_a_burst_of_cancels_starts_no_child_for_each_of_them(make: Make, children: Children) -> None:
    computations = make(2)
    for n in range(100):
        computations.start(n, sleeping(f"h{n}", 1))
    for n in range(90):
        computations.cancel(n)
        await asyncio.sleep(0.02)
    assert len(children.started) < 50
    await asyncio.sleep(60)
    assert computations.waiting == computations.in_flight == 0


async def test_an_error_is_reported_unchanged(make: Make, witness: Witness) -> None:
    make(2).start("a", sleeping("h", -1))
    await asyncio.sleep(5)
    assert isinstance(witness.reported[0][2], ConnectionError)
    assert witness.counts == {"started": 1, "failed": 1}


async def test_equal_input_is_computed_once_for_all_owners(make: Make, witness: Witness, children: Children) -> None:
    computations = make(2)
    for owner in ("a", "b", "c"):
        computations.start(owner, sleeping("h", 1))
    computations.cancel("b")
    await asyncio.sleep(5)
    assert children.started == [1]
    assert witness.reported == [("a", "h", 1), ("c", "h", 1)]
    assert witness.counts == {"started": 1, "completed": 1}


async def test_only_the_last_owners_cancel_kills(make: Make, witness: Witness, children: Children) -> None:
    computations = make(2)
    computations.start("a", sleeping("h", 100))
    computations.start("b", sleeping("h", 100))
    await asyncio.sleep(1)
    computations.cancel("a")
    await asyncio.sleep(1)
    assert children.kills == 0
    committed_at = SystemClock().now()
    computations.cancel("b", committed_at=committed_at)
    assert computations.in_flight == 1
    await asyncio.sleep(1)
    assert children.kills == 1
    assert computations.in_flight == 0
    assert len(witness.cancels) == 1
    assert not witness.reported


async def test_a_cancel_before_the_childs_first_step_gives_the_slot_back(make: Make, witness: Witness) -> None:
    computations = make(2)
    computations.start("a", sleeping("h", 1))
    computations.cancel("a")
    await asyncio.sleep(0.1)
    assert computations.in_flight == 0
    assert witness.counts == {"started": 1, "cancelled": 1}


async def test_the_same_input_wanted_again_while_its_child_dies_is_a_new_computation(
    make: Make, witness: Witness, children: Children
) -> None:
    computations = make(2)
    computations.start("a", sleeping("h", 1))
    await asyncio.sleep(0.5)
    computations.cancel("a")
    computations.start("b", sleeping("h", 1))
    await asyncio.sleep(5)
    assert witness.owners == ["b"]
    assert len(children.started) == 2
    assert witness.counts == {"started": 2, "cancelled": 1, "completed": 1}


async def test_another_input_of_the_same_owner_replaces_the_first(make: Make, witness: Witness) -> None:
    computations = make(2)
    computations.start("a", sleeping("old", 1))
    await asyncio.sleep(0.5)
    computations.start("a", sleeping("new", 1))
    await asyncio.sleep(5)
    assert witness.reported == [("a", "new", 1)]
    assert witness.counts == {"started": 2, "cancelled": 1, "completed": 1}


async def test_a_cancel_while_waiting_counts_at_once(make: Make, witness: Witness) -> None:
    computations = make(1)
    computations.start("a", sleeping("a", 10))
    computations.start("b", sleeping("b", 10))
    assert computations.waiting == 1
    computations.cancel("b", committed_at=SystemClock().now())
    assert computations.waiting == 0
    assert witness.counts["cancelled"] == 1
    assert len(witness.cancels) == 1


async def test_cancelling_an_unknown_owner_does_nothing(make: Make, witness: Witness) -> None:
    make(1).cancel("unknown")
    assert not witness.counts


async def test_fifo_slots_take_the_oldest_and_the_lifo_slot_the_newest(make: Make, children: Children) -> None:
    computations = make(3)
    for seconds in (10.1, 10.2, 10.3, 10.4, 10.5):
        computations.start(seconds, sleeping(str(seconds), seconds))
    assert computations.in_flight == 3
    await asyncio.sleep(0.5)
    assert children.started == [10.1, 10.2, 10.3]
    await asyncio.sleep(0.5)
    assert children.started == [10.1, 10.2, 10.3, 10.5]


async def test_a_quick_one_behind_slow_ones_waits_at_most_a_slice(make: Make, witness: Witness) -> None:
    computations = make(4)
    for n in range(100):
        computations.start(n, sleeping(f"slow-{n}", 2))
    computations.start("quick", sleeping("quick", 0.05))
    await asyncio.sleep(0.9)
    assert witness.owners == ["quick"]
    await asyncio.sleep(200)
    assert len(witness.reported) == 101
    assert witness.most_children == 4
    assert witness.counts == {"started": 101, "completed": 101}


async def test_on_a_busy_machine_the_slice_counts_from_when_the_child_works(
    make: Make, children: Children, witness: Witness
) -> None:
    children.loading_s = 4
    computations = make(2)
    for n in range(30):
        computations.start(n, sleeping(f"slow-{n}", 600))
    computations.start("quick", sleeping("quick", 0.1))
    await asyncio.sleep(2 * (4 + 1))
    assert witness.owners == ["quick"]


async def test_a_child_that_never_begins_to_work_does_not_keep_the_slot(
    make: Make, children: Children, witness: Witness
) -> None:
    computations = make(2, load_limit_s=3)
    children.loading_s = 600
    for n in range(3):
        computations.start(n, sleeping(f"stuck-{n}", 1))
    await asyncio.sleep(2.9)
    assert (children.kills, computations.in_flight) == (0, 2)
    children.loading_s = 0
    computations.start("quick", sleeping("quick", 0.1))
    await asyncio.sleep(0.5)
    assert children.kills == 1
    assert witness.owners == ["quick"]


async def test_a_slow_one_is_not_killed_while_no_fresh_one_waits(make: Make, children: Children) -> None:
    computations = make(2)
    computations.start("a", sleeping("a", 10))
    computations.start("b", sleeping("b", 10))
    await asyncio.sleep(5)
    assert children.kills == 0
    computations.start("c", sleeping("c", 0.1))
    await asyncio.sleep(1)
    assert children.kills == 1


async def test_a_requeued_one_keeps_its_place(make: Make, witness: Witness) -> None:
    computations = make(2)
    computations.start("first", sleeping("first", 3))
    for n in range(5):
        computations.start(n, sleeping(str(n), 3))
    await asyncio.sleep(100)
    # Requeued ones are done in order of arrival, whichever the LIFO slot tried first.
    assert witness.owners[0] == "first"
    assert sorted(witness.owners[1:], key=str) == [0, 1, 2, 3, 4]
    assert witness.owners.index(0) < witness.owners.index(2)
    assert witness.counts == {"started": 6, "completed": 6}


async def test_one_that_becomes_oldest_in_the_lifo_slot_keeps_its_child(
    make: Make, children: Children, witness: Witness
) -> None:
    computations = make(2)
    computations.start("a", sleeping("a", 0.5))
    computations.start("b", sleeping("b", 5))
    computations.start("c", sleeping("c", 5))
    await asyncio.sleep(30)
    # When a ends, b is the oldest: it keeps its child in a FIFO slot, and c gets the LIFO slot.
    assert children.started == [0.5, 5, 5]
    assert children.kills == 0
    assert witness.owners == ["a", "b", "c"]


async def test_a_single_slot_alternates_between_fifo_and_lifo(make: Make, witness: Witness) -> None:
    computations = make(1)
    for n in range(6):
        computations.start(n, sleeping(str(n), 0.5))
    await asyncio.sleep(10)
    assert witness.owners == [0, 5, 1, 4, 2, 3]
    assert witness.most_children == 1


async def test_with_one_slot_slow_ones_do_not_block_a_quick_one_for_ever(make: Make, witness: Witness) -> None:
    computations = make(1)
    for n in range(50):
        computations.start(n, sleeping(str(n), 2))
    computations.start("quick", sleeping("quick", 0.05))
    await asyncio.sleep(2.2)
    assert witness.owners == [0, "quick"]


async def test_a_cancel_of_one_being_requeued_ends_it(make: Make, witness: Witness, children: Children) -> None:
    computations = make(2)
    for name in ("a", "b", "c"):
        computations.start(name, sleeping(name, 10))
    await asyncio.sleep(0.755)  # b's slice is over and its child is ending
    assert children.kills == 1
    computations.cancel("b")
    await asyncio.sleep(1)
    assert computations.in_flight + computations.waiting == 2
    assert witness.counts == {"started": 3, "cancelled": 1}


async def test_beyond_the_bound_a_retryable_error_is_reported(make: Make, witness: Witness) -> None:
    computations = make(1, max_waiting=2)
    for n in range(5):
        computations.start(n, sleeping(str(n), 1))
    assert witness.owners == [3, 4]
    assert all(isinstance(error, RetryableError) for _, _, error in witness.reported)
    assert witness.counts["started"] == 3


async def test_closing_ends_everything_without_a_report(make: Make, witness: Witness) -> None:
    computations = make(2)
    for n in range(5):
        computations.start(n, sleeping(str(n), 10))
    await asyncio.sleep(1)
    await computations.aclose()
    assert computations.in_flight == computations.waiting == 0
    assert witness.counts == {"started": 5, "cancelled": 5}
    assert not witness.reported
    computations.start("late", sleeping("late", 1))
    assert isinstance(witness.reported[0][2], RetryableError)


@pytest.mark.parametrize("pool_size", [1, 2, 5])
async def test_every_owner_gets_one_result_or_has_cancelled(make: Make, witness: Witness, pool_size: int) -> None:
    rng = random.Random(pool_size)  # noqa: S311 - reproducible
    computations = make(pool_size)
    wanted: dict[int, str] = {}
    expected = 0
    for _ in range(400):
        owner, name = rng.randrange(30), rng.randrange(40)
        if rng.random() < 0.7:
            computations.start(owner, sleeping(str(name), rng.choice((0.05, 2))))
            wanted[owner] = str(name)
        else:
            computations.cancel(owner)
            wanted.pop(owner, None)
        before = len(witness.reported)
        await asyncio.sleep(rng.uniform(0, 0.3))
        for owner_, hash_, _ in witness.reported[before:]:
            assert wanted.pop(owner_) == hash_
            expected += 1
    before = len(witness.reported)
    await asyncio.sleep(500)
    assert {owner: input_hash for owner, input_hash, _ in witness.reported[before:]} == wanted
    assert len(witness.reported) == expected + len(wanted)
    assert witness.most_children == pool_size
    assert computations.in_flight == computations.waiting == 0


async def test_a_pool_without_slots_is_refused(witness: Witness) -> None:
    with pytest.raises(ValueError, match="pool_size"):
        Computations(witness.on_done, clock=SystemClock(), metrics=witness, pool_size=0)
