"""A connection's budget of frames, and the turns of others."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from controller.hub.frames import BURST, PER_S, UNIT_BYTES, FrameBudget, Frames
from controller.hub.worker_budget import WorkerTime

PING = WSMessage(WSMsgType.PING, b"x", None)
TEXT = WSMessage(WSMsgType.TEXT, "{}", None)
NO_REQUEST: Any = SimpleNamespace(protocol=None)


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
    mib = 2**20 // UNIT_BYTES
    waits = [budget.take(1.0, 8 * 2**20) for _ in range(3)]
    assert waits[-1] == pytest.approx((3 * mib + 24 * mib + 4 - BURST) / PER_S, abs=1.1)


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
    assert await Frames(socket, NO_REQUEST, WorkerTime()).next() is TEXT
    task.cancel()
    assert turns >= BURST / 20
    assert socket.answered == BURST


async def test_a_flood_is_read_no_faster_than_the_budget_allows() -> None:
    socket: Any = Flooded(10**9)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await Frames(socket, NO_REQUEST, WorkerTime()).next()
    assert socket.answered <= BURST + PER_S * 1.5


async def test_a_socket_that_closes_is_not_answered() -> None:
    socket: Any = SimpleNamespace(receive=Flooded(1).receive, closed=True)
    assert await Frames(socket, NO_REQUEST, WorkerTime()).next() is TEXT
