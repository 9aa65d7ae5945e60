"""Turns of hellos: some at once, first come, first served; the others learn when to come at the measured pace."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from controller.hub.hello_queue import AT_ONCE, LATEST_S, LEAST, MOST, WAIT_S, HelloQueue


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def serve(queue: HelloQueue, clock: Clock, count: int, each_s: float) -> None:
    """So many hellos that come at once, of which one ends every so many seconds."""

    async def one() -> None:
        with queue.entered():
            async with queue.turn():
                await asyncio.sleep(0)
                clock.now += each_s

    await asyncio.gather(*(one() for _ in range(count)))


async def test_only_some_are_written_at_once_in_the_order_of_their_arrival() -> None:
    queue, inside, most, order = HelloQueue(Clock()), 0, 0, list[int]()

    async def one(number: int) -> None:
        nonlocal inside, most
        with queue.entered():
            async with queue.turn():
                inside += 1
                most = max(most, inside)
                order.append(number)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(one(number) for number in range(5 * AT_ONCE)))
    assert (most, order) == (AT_ONCE, list(range(5 * AT_ONCE)))


async def test_one_that_gives_up_takes_no_turn() -> None:
    queue = HelloQueue(Clock())

    async def hang() -> None:
        with queue.entered():
            async with queue.turn():
                await asyncio.Event().wait()

    hanging = [asyncio.create_task(hang()) for _ in range(3 * AT_ONCE)]
    await asyncio.sleep(0)
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    async with asyncio.timeout(1):
        await serve(queue, Clock(), 1, 0.0)
    assert queue.room > 0


@pytest.mark.parametrize(("each_s", "room"), [(0.001, MOST), (0.05, int(WAIT_S / 0.05)), (30.0, LEAST)])
async def test_as_many_come_in_as_the_database_can_write_in_time(each_s: float, room: int) -> None:
    clock = Clock()
    queue = HelloQueue(clock)
    await serve(queue, clock, 400, each_s)
    assert queue.room == pytest.approx(room, rel=0.05)


async def test_hellos_that_fail_have_a_pace_too() -> None:
    """A database that hangs writes none, so only those may come in that always may."""
    clock = Clock()
    queue = HelloQueue(clock)

    async def one() -> None:
        with queue.entered():
            async with queue.turn():
                await asyncio.sleep(0)
                clock.now += 5.0
                raise TimeoutError

    await asyncio.gather(*(one() for _ in range(40)), return_exceptions=True)
    assert queue.room == LEAST


async def test_those_that_are_sent_away_come_back_one_after_the_other() -> None:
    clock = Clock()
    queue = HelloQueue(clock)
    await serve(queue, clock, 400, 0.01)
    times = [queue.later_s() for _ in range(4_000)]
    assert times == sorted(times)
    assert times[0] == 1.0
    assert 15 <= times[-1] <= LATEST_S
    clock.now += LATEST_S + WAIT_S
    assert queue.later_s() == 1.0, "what was booked is over"


async def return_of_all(count: int, each_s: Callable[[float], float]) -> list[float]:
    """When the hellos of so many agents ended, which all come at second 0; one ends every `each_s(second)` seconds."""
    clock, ends = Clock(), list[float]()
    clock.now = 0.0
    queue = HelloQueue(clock)
    arrivals = [(0.0, number) for number in range(count)]
    writing: list[tuple[float, int, AsyncExitStack]] = []
    waiting: deque[tuple[int, AsyncExitStack]] = deque()
    while arrivals or writing:
        if writing and (not arrivals or writing[0][0] <= arrivals[0][0]):
            clock.now, _, agent = heapq.heappop(writing)
            await agent.aclose()
            ends.append(clock.now)
        else:
            clock.now, number = heapq.heappop(arrivals)
            if queue.room <= 0:
                heapq.heappush(arrivals, (clock.now + queue.later_s(), number))
                continue
            agent = AsyncExitStack()
            agent.enter_context(queue.entered())
            waiting.append((number, agent))
        while waiting and len(writing) < AT_ONCE:
            number, agent = waiting.popleft()
            await agent.enter_async_context(queue.turn())
            heapq.heappush(writing, (clock.now + AT_ONCE * each_s(clock.now), number, agent))
    return ends


@pytest.mark.parametrize("slow_s", [0.0, 20.0, 60.0])
@pytest.mark.parametrize("quick_s", [0.005, 0.02, 0.05])
async def test_the_queue_stays_full_while_agents_wait_also_after_a_slow_time(quick_s: float, slow_s: float) -> None:
    """What was booked at the pace of a slow database must not keep a quick one waiting."""
    count = 5_000
    ends = await return_of_all(count, lambda now: 4 * quick_s if now < slow_s else quick_s)
    assert len(ends) == count
    left = sum(end > slow_s for end in ends)
    assert ends[-1] - slow_s <= 1.25 * left * quick_s


async def test_an_idle_time_is_not_taken_for_a_slow_database() -> None:
    clock = Clock()
    queue = HelloQueue(clock)
    for _ in range(200):
        await serve(queue, clock, 1, 0.001)
        clock.now += 3_600
    assert queue.room > LEAST


async def test_it_is_open_since_the_last_agent_was_sent_away() -> None:
    clock = Clock()
    queue = HelloQueue(clock)
    assert queue.open_for_s == float("inf")
    queue.later_s()
    clock.now += 7
    assert queue.open_for_s == 7
