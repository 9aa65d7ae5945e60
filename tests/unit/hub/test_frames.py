"""A connection's budget of frames, and the turns of others."""

import asyncio
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from controller.hub.bounds import MalformedMessageError
from controller.hub.frames import BURST, PER_S, READING_BURST_S, READING_SHARE, FrameBudget, Frames, ReadingTimes
from controller.hub.readings import Doubts
from http1.rate import Rate
from schemas.wire import Goodbye

PING = WSMessage(WSMsgType.PING, b"x", None)
TEXT = WSMessage(WSMsgType.TEXT, "{}", None)
NO_REQUEST: Any = SimpleNamespace(protocol=None)


def plenty() -> Rate:
    """A worker's time that has not been used."""
    return ReadingTimes().of("w", asyncio.get_running_loop().time())


@pytest.mark.parametrize(
    ("taken", "spaced_s", "wait_s"),
    [
        (1, 0.0, 0.0),
        (10, 0.0, 0.0),  # the burst
        (11, 0.0, 0.5),
        (12, 0.0, 1.0),
        (1_000, 0.5, 0.0),  # as fast as it may be
        (1_000, 0.6, 0.0),
        (1_000, 0.25, 245.0),  # twice as fast: half of them wait
    ],
)
def test_the_budget(taken: int, spaced_s: float, wait_s: float) -> None:
    budget, waits = FrameBudget(0.0, burst=10, per_s=2.0), 0.0
    for number in range(taken):
        waits = budget.take(number * spaced_s)
    assert waits == pytest.approx(wait_s, rel=0.02)


def test_long_frames_count_as_several() -> None:
    budget = FrameBudget(0.0)
    assert budget.take(0.0, 3 * 2**20) == 0.0, "a backlog of samples after an outage"
    assert budget.take(1.0, 8 * 2**20) == pytest.approx((1 + 2048 + 1 + 768 - BURST - PER_S) / PER_S)


def quiet() -> Any:
    """A socket with messages and no pings."""
    return Flooded(0)


class Flooded:
    """A socket on which pings have arrived without end, then one message."""

    def __init__(self, pings: int) -> None:
        self.pings = pings
        self.answered = 0
        self.closed = False

    async def receive(self) -> WSMessage:
        self.pings -= 1
        return PING if self.pings >= 0 else TEXT

    async def pong(self, data: bytes) -> None:
        assert data == b"x"
        self.answered += 1


async def test_others_have_their_turn_while_pings_arrive() -> None:
    socket: Any = Flooded(BURST)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert await Frames(socket, NO_REQUEST, plenty()).next() is TEXT
    task.cancel()
    assert turns >= BURST / 20
    assert socket.answered == BURST


async def test_a_flood_is_read_no_faster_than_the_budget_allows() -> None:
    socket: Any = Flooded(10**9)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await Frames(socket, NO_REQUEST, plenty()).next()
    assert socket.answered <= BURST + PER_S * 1.5


async def test_a_socket_that_closes_is_not_answered() -> None:
    socket: Any = SimpleNamespace(receive=Flooded(1).receive, closed=True)
    assert await Frames(socket, NO_REQUEST, plenty()).next() is TEXT


async def test_messages_that_take_long_to_read_hold_back_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever connections it makes; others are read meanwhile."""
    loop, times = asyncio.get_running_loop(), ReadingTimes()
    spent = count(step=READING_BURST_S / 4)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    first = Frames(quiet(), NO_REQUEST, times.of("w", loop.time()))
    for _ in range(5):
        assert first.parse('{"type": "goodbye"}', Doubts()) == Goodbye()
    with pytest.raises(MalformedMessageError):
        first.parse("{}")
    assert times.of("w", loop.time()).take(loop.time(), 0.0) == pytest.approx(0.5 / READING_SHARE, rel=0.1)
    for frames in (first, Frames(quiet(), NO_REQUEST, times.of("w", loop.time()))):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await frames.next()
    assert await Frames(quiet(), NO_REQUEST, times.of("v", loop.time())).next() is TEXT


def test_the_time_of_workers_that_are_gone_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hub.frames._MOST_WORKERS", 3)
    times = ReadingTimes()
    kept = times.of("w-0", 0.0)
    for number in range(9):
        times.of(f"v-{number}", 0.0)
        assert times.of("w-0", 0.0) is kept
    assert len(times._of) == 3
