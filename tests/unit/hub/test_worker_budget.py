"""The budget of a worker: frames, bytes and time, over all its connections; others are read in between."""

import asyncio
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from controller.hub.worker_budget import (
    BURST_S,
    FRAME_S,
    MAX_OWED_S,
    MIB_S,
    SHARE,
    Frames,
    WorkerBudget,
    WorkerBudgets,
)

BURST = int(BURST_S / FRAME_S) - 1
MIB = 2**20
PING = WSMessage(WSMsgType.PING, b"x", None)
TEXT = WSMessage(WSMsgType.TEXT, "{}", None)


class Socket:
    """Messages without end."""

    closed = False

    def __init__(self, size: int) -> None:
        self._message = WSMessage(WSMsgType.TEXT, "x" * size, None)

    async def receive(self) -> WSMessage:
        return self._message


def frames(of: WorkerBudget, size: int = 0) -> Frames:
    socket: Any = Socket(size)
    return Frames(socket, of)


async def is_read(one: Frames) -> bool:
    try:
        async with asyncio.timeout(0.1):
            return (await one.next()).type is WSMsgType.TEXT
    except TimeoutError:
        return False


async def test_long_frames_cost_as_their_bytes() -> None:
    backlog, all_of_it = frames(WorkerBudget(), size=3 * MIB), frames(WorkerBudget(), size=8 * MIB)
    for _ in range(10):
        assert await is_read(backlog), "a backlog of samples after an outage"
    read = 0
    while await is_read(all_of_it):
        read += 1
    assert read == pytest.approx(BURST_S / (8 * MIB_S), abs=1.1)


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
    assert await Frames(socket, WorkerBudget()).next() is TEXT
    task.cancel()
    assert turns >= BURST / 20
    assert socket.answered == BURST


async def test_a_flood_is_read_no_faster_than_the_budget_allows() -> None:
    socket: Any = Flooded(10**9)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await Frames(socket, WorkerBudget()).next()
    assert socket.answered <= (BURST_S + SHARE * 1.5) / FRAME_S


async def test_a_socket_that_closes_is_not_answered() -> None:
    socket: Any = SimpleNamespace(receive=Flooded(1).receive, closed=True)
    assert await Frames(socket, WorkerBudget()).next() is TEXT


async def test_what_is_measured_holds_back_all_connections_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = count(step=BURST_S)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    times = WorkerBudgets()
    older, newer = frames(times.of("w")), frames(times.of("w"))
    assert await is_read(older)
    older.budget.charge(BURST_S)
    assert await is_read(newer), "the burst"
    with pytest.raises(ValueError, match="of the work"), newer.budget.measured():
        raise ValueError("of the work")
    assert not await is_read(older)
    assert not await is_read(newer)
    assert not await is_read(frames(times.of("w"))), "a connection that is made now"
    assert await is_read(frames(times.of("v")))


async def test_what_came_before_the_time_was_used_up_waits_all_the_same() -> None:
    """Many connections may have been admitted before one of them takes long."""
    own = WorkerBudget()
    waiting = [asyncio.create_task(is_read(frames(own))) for _ in range(5)]
    own.charge(BURST_S + 1.0)
    assert not any(await asyncio.gather(*waiting))


async def test_others_have_as_long_after_each_message_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within the burst: a hundred messages may be there already."""
    spent = count(step=BURST_S / 100)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    own, began_s = frames(WorkerBudget()), asyncio.get_running_loop().time()
    for _ in range(10):
        await own.next()
        with own.budget.measured():
            pass
    assert asyncio.get_running_loop().time() - began_s >= 9 * BURST_S / 100


async def test_what_is_owed_comes_back_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a stolen credential does not shut out the worker's own agent for long."""
    now_s = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    own = WorkerBudget()
    own.charge(BURST_S)
    assert own.owed_s == 0
    own.charge(0.5)
    assert own.owed_s == pytest.approx(0.5 / SHARE)
    own.charge(1e6)
    assert own.owed_s == pytest.approx(MAX_OWED_S / SHARE)
    now_s += MAX_OWED_S / SHARE
    assert own.owed_s == pytest.approx(0.0)
    now_s += 1e6
    own.charge(BURST_S)
    assert own.owed_s == pytest.approx(0.0)


async def test_the_time_of_workers_that_are_gone_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hub.worker_budget._MAX_WORKERS", 3)
    times = WorkerBudgets()
    kept = times.of("w")
    for number in range(9):
        times.of(f"v-{number}")
        assert times.of("w") is kept
    assert len(times._of) == 3
