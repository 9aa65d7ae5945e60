"""The keyed queue: one holder per key, no key lost, the earlier time wins, bounded."""

import asyncio
import random
from collections import Counter

import pytest
import uvloop

from controller.runtime.queue import KeyedQueue, QueueClosedError

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_key_added_twice_is_handed_out_once_and_in_order() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for key in ("b", "a", "b", "c"):
        queue.add(key)
    assert await queue.take(10) == ["b", "a", "c"]
    assert queue.depth == 0


async def test_take_hands_out_no_more_than_asked_and_the_rest_stays() -> None:
    queue: KeyedQueue[int] = KeyedQueue()
    for key in range(5):
        queue.add(key)
    assert await queue.take(2) == [0, 1]
    assert queue.depth == 3
    assert len(queue) == 5


async def test_a_key_added_while_held_runs_exactly_once_more() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    await queue.take()
    for _ in range(3):
        queue.add("a")
    assert queue.depth == 0
    queue.done("a")
    assert await queue.take() == ["a"]
    queue.done("a")
    assert len(queue) == 0


async def test_urgent_keys_go_first_also_when_they_waited_already() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for key in ("a", "b", "c"):
        queue.add(key)
    queue.add("c", urgent=True)
    queue.add("d", urgent=True)
    assert await queue.take(10) == ["c", "d", "a", "b"]


async def test_a_delayed_key_comes_when_due() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("late", after_s=5)
    queue.add("soon", after_s=2)
    assert await queue.take() == ["soon"]
    assert now() == pytest.approx(2)
    assert await queue.take() == ["late"]
    assert now() == pytest.approx(5)


@pytest.mark.parametrize(("first", "second"), [(10.0, 3.0), (3.0, 10.0), (3.0, 3.0)])
async def test_of_two_adds_the_earlier_wins(first: float, second: float) -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a", after_s=first)
    queue.add("a", after_s=second)
    assert await queue.take() == ["a"]
    assert now() == pytest.approx(3)
    queue.done("a")
    assert len(queue) == 0


async def test_an_add_for_now_beats_a_delay_and_leaves_nothing_for_later() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a", after_s=100)
    queue.add("a")
    assert await queue.take() == ["a"]
    queue.done("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 200)


async def test_a_hint_during_the_run_beats_the_runs_own_delay() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    await queue.take()
    queue.add("a", after_s=300)
    queue.add("a")
    queue.done("a")
    assert queue.depth == 1


async def test_every_waiting_taker_gets_its_key() -> None:
    queue: KeyedQueue[int] = KeyedQueue()
    takers = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(1)
    for key in range(3):
        queue.add(key, after_s=1)
    assert sorted(key for keys in await asyncio.gather(*takers) for key in keys) == [0, 1, 2]


async def test_a_taker_cancelled_as_it_is_woken_passes_the_key_on() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    first, second = (asyncio.create_task(queue.take()) for _ in range(2))
    await asyncio.sleep(1)
    queue.add("a")
    first.cancel()
    assert await second == ["a"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_beyond_the_bound_the_queue_says_so_instead_of_growing() -> None:
    queue: KeyedQueue[int] = KeyedQueue(max_keys=3)
    queue.add(0)
    await queue.take()
    queue.add(1, after_s=10)
    queue.add(2)
    assert not queue.overflow
    queue.add(2)
    queue.add(0)
    assert not queue.overflow
    queue.add(3)
    assert queue.overflow
    assert len(queue) == 3


async def test_stale_entries_do_not_accumulate() -> None:
    queue: KeyedQueue[int] = KeyedQueue()
    for n in range(10_000):
        queue.add(n % 3, after_s=20_000 - n)
    assert len(queue) == 3
    assert len(queue._heap) < 200


async def test_closing_ends_the_takers() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    taker = asyncio.create_task(queue.take())
    queue.add("later", after_s=5)
    await asyncio.sleep(1)
    queue.close()
    with pytest.raises(QueueClosedError):
        await taker
    queue.add("a")
    with pytest.raises(QueueClosedError):
        await queue.take()


async def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_keys"):
        KeyedQueue(max_keys=0)


@pytest.mark.parametrize("seed", range(5))
async def test_under_random_load_no_key_has_two_holders_and_every_add_is_followed_by_a_run(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - reproducible
    queue: KeyedQueue[int] = KeyedQueue()
    held: Counter[int] = Counter()
    added_at: dict[int, float] = {}
    run_at: dict[int, float] = {}

    async def work() -> None:
        while True:
            keys = await queue.take(rng.randint(1, 3))
            held.update(keys)
            assert max(held.values()) == 1
            run_at.update(dict.fromkeys(keys, now()))
            await asyncio.sleep(rng.uniform(0, 0.1))
            for key in keys:
                held[key] -= 1
                queue.done(key)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(4)]
        for _ in range(1000):
            key = rng.randrange(20)
            after_s = rng.choice((0.0, 0.0, rng.uniform(0, 1)))
            queue.add(key, after_s=after_s, urgent=rng.random() < 0.1)
            added_at[key] = now()
            await asyncio.sleep(rng.uniform(0, 0.02))
        await asyncio.sleep(5)
        for worker in workers:
            worker.cancel()
    assert len(queue) == 0
    assert all(run_at[key] >= added_at[key] for key in added_at)


def test_delays_down_to_nothing_come_due_under_uvloop() -> None:
    """uvloop rounds times to milliseconds and treats a timer in the past differently."""

    async def scenario() -> None:
        queue: KeyedQueue[int] = KeyedQueue()
        for n in range(200):
            queue.add(n, after_s=n * 1e-6)
            queue.add(n, after_s=n * 1e-5)
        taken: set[int] = set()
        async with asyncio.timeout(20):
            while len(taken) < 200:
                keys = await queue.take(7)
                assert not taken & set(keys)
                taken.update(keys)
        for key in taken:
            queue.done(key)
        assert len(queue) == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
