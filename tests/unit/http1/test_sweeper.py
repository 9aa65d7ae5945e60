"""Deadlines are kept by sweeps: a defect at one object or in one sweep costs no other."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from http1.daemon import sweeper
from http1.daemon.log_limit import LogLimit
from http1.daemon.sweeper import Sweeper

PERIOD_S, LIMIT_S = 0.002, 10.0


@pytest.fixture(autouse=True)
def fresh_log_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "_LOGGED", LogLimit())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():  # noqa: ASYNC110 - no event
            await asyncio.sleep(PERIOD_S)


async def test_one_that_fails_keeps_no_other_from_being_looked_at() -> None:
    looked: list[int] = []

    def look(one: int) -> None:
        if one == 0:
            raise ValueError("a defect")
        looked.append(one)

    sweeping = Sweeper("test", PERIOD_S, lambda _now: sweeping.each([0, 1], look))
    with capture_logs() as logs:
        sweeping.start()
        await until(lambda: len(looked) >= 3)
    sweeping.stop()
    assert set(looked) == {1}
    (line,) = logs
    assert (line["event"], line["sweep"], str(line["exc_info"])) == ("a sweep has failed", "test", "a defect")


async def test_a_sweep_that_fails_is_followed_by_the_next_one() -> None:
    times: list[float] = []

    def sweep(now: float) -> None:
        times.append(now)
        raise ValueError("a defect")

    sweeping = Sweeper("test", PERIOD_S, sweep)
    sweeping.start()
    with capture_logs():
        await until(lambda: len(times) >= 3)
    assert times == sorted(set(times))
    sweeping.stop()
    at_stop = len(times)
    await asyncio.sleep(10 * PERIOD_S)
    assert len(times) == at_stop


async def test_a_sweep_may_stop_itself_and_begin_again() -> None:
    times: list[float] = []

    def sweep(now: float) -> None:
        times.append(now)
        sweeping.stop()

    sweeping = Sweeper("test", PERIOD_S, sweep)
    for count in (1, 2):
        sweeping.start()
        sweeping.start()
        await until(lambda count=count: len(times) == count)
        await asyncio.sleep(10 * PERIOD_S)
        assert (len(times), sweeping.due) == (count, float("inf"))
    assert sweeping.late_s >= 0
