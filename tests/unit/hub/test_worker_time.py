"""A worker whose messages take long waits, whatever connections it makes; others are read meanwhile."""

import asyncio
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from controller.hub.frames import Frames
from controller.hub.worker_budget import BURST_S, MOST_OWED_S, SHARE, WorkerTime, WorkerTimes

TEXT = WSMessage(WSMsgType.TEXT, "{}", None)
NO_REQUEST: Any = SimpleNamespace(protocol=None)


class Socket:
    """Messages without end."""

    closed = False

    async def receive(self) -> WSMessage:
        return TEXT


def frames(of: WorkerTime) -> Frames:
    socket: Any = Socket()
    return Frames(socket, NO_REQUEST, of)


async def is_read(one: Frames) -> bool:
    try:
        async with asyncio.timeout(0.1):
            return await one.next() is TEXT
    except TimeoutError:
        return False


async def test_what_is_measured_holds_back_all_connections_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = count(step=BURST_S)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    times = WorkerTimes()
    older, newer = frames(times.of("w")), frames(times.of("w"))
    assert await is_read(older)
    older.time.charge(BURST_S)
    assert await is_read(newer), "the burst"
    with pytest.raises(ValueError, match="of the work"), newer.time.measured():
        raise ValueError("of the work")
    assert not await is_read(older)
    assert not await is_read(newer)
    assert not await is_read(frames(times.of("w"))), "a connection that is made now"
    assert await is_read(frames(times.of("v")))


async def test_what_came_before_the_time_was_used_up_waits_all_the_same() -> None:
    """Many connections may have been admitted before one of them takes long."""
    own = WorkerTime()
    waiting = [asyncio.create_task(is_read(frames(own))) for _ in range(5)]
    own.charge(BURST_S + 1.0)
    assert not any(await asyncio.gather(*waiting))


async def test_others_have_as_long_after_each_message_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within the burst: a hundred messages may be there already."""
    spent = count(step=BURST_S / 100)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    own, began_s = frames(WorkerTime()), asyncio.get_running_loop().time()
    for _ in range(10):
        await own.next()
        with own.time.measured():
            pass
    assert asyncio.get_running_loop().time() - began_s >= 9 * BURST_S / 100


async def test_what_is_owed_comes_back_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a stolen credential does not shut out the worker's own agent for long."""
    now_s = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    own = WorkerTime()
    own.charge(BURST_S)
    assert own.owed_s == 0
    own.charge(0.5)
    assert own.owed_s == pytest.approx(0.5 / SHARE)
    own.charge(1e6)
    assert own.owed_s == pytest.approx(MOST_OWED_S / SHARE)
    now_s += MOST_OWED_S / SHARE
    assert own.owed_s == pytest.approx(0.0)
    now_s += 1e6
    own.charge(BURST_S)
    assert own.owed_s == pytest.approx(0.0)


async def test_the_time_of_workers_that_are_gone_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hub.worker_budget._MOST_WORKERS", 3)
    times = WorkerTimes()
    kept = times.of("w")
    for number in range(9):
        times.of(f"v-{number}")
        assert times.of("w") is kept
    assert len(times._of) == 3
