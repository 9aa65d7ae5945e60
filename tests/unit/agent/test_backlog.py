"""Unacknowledged periods are kept within bounds and sent again."""

import asyncio

import msgspec
import pytest

from agent.sampling import backlog as module
from agent.sampling.backlog import Backlog
from schemas.wire import SamplePeriod
from support.builders.samples import period


def filled(count: int) -> Backlog:
    backlog = Backlog()
    for seq in range(1, count + 1):
        backlog.add(period(seq, 10.0 * seq, {"GPU-a": seq}))
    return backlog


async def chunk(backlog: Backlog) -> list[int]:
    async with asyncio.timeout(5):
        return [one.seq for one in await backlog.next()]


async def is_blocked(backlog: Backlog) -> bool:
    waiting = asyncio.create_task(backlog.next())
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        return not waiting.done()
    finally:
        waiting.cancel()


async def test_one_chunk_is_sent_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 2 * len(msgspec.json.encode(period(1, 10.0, {"GPU-a": 1})).decode()))
    backlog = filled(5)
    assert await chunk(backlog) == [1, 2]
    assert await is_blocked(backlog)
    backlog.acknowledge(1)
    assert await is_blocked(backlog)
    backlog.acknowledge(2)
    assert await chunk(backlog) == [3, 4]
    backlog.rewind()  # the connection was lost
    assert await chunk(backlog) == [3, 4]
    backlog.acknowledge(4)
    assert await chunk(backlog) == [5]
    backlog.acknowledge(5)
    assert (len(backlog), await is_blocked(backlog)) == (0, True)


async def test_a_period_is_returned_unchanged() -> None:
    backlog = Backlog()
    one: SamplePeriod = period(7, 70.0, {"GPU-a": 12.5})
    backlog.add(one)
    assert await backlog.next() == (one,)


async def test_an_acknowledgement_drops_periods_that_were_never_sent() -> None:
    """The controller may have received them on an earlier connection."""
    backlog = filled(3)
    backlog.acknowledge(2)
    assert await chunk(backlog) == [3]


async def test_the_oldest_are_dropped_beyond_the_limits_of_age_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_S", 25.0)
    assert await chunk(filled(9)) == [7, 8, 9]
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * len(msgspec.json.encode(period(9, 10.0, {"GPU-a": 1})).decode()) + 4)
    assert await chunk(filled(9)) == [8, 9]


async def test_a_day_without_a_controller_is_bounded() -> None:
    backlog = Backlog()
    gpus = {f"GPU-{n}": 50.0 for n in range(8)}
    for seq in range(1, 8641):
        backlog.add(period(seq, 10.0 * seq, gpus))
    assert len(backlog) == 6 * 360 + 1
    assert backlog._bytes < 3 * 2**20
