"""The change feed against a real PostgreSQL: no change is missed, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed, parse_hint
from controller.runtime.outcome import Backoff

Connect = Callable[[], Awaitable[Any]]
EVERYTHING = ("*", None)


@pytest.mark.parametrize(
    ("payload", "hints"),
    [
        ("instance 7", [("instance", "7")]),
        ("instance 7 8 9", [("instance", "7"), ("instance", "8"), ("instance", "9")]),
        ("worker *", [("worker", None)]),
        ("", None),
        ("instance", None),
        ("instance ", None),
        ("instance  7", None),
        ("instance 7 *", None),
        (" 7", None),
        ("* *", None),
        ('{"kind": "instance"}', None),
    ],
)
def test_payloads(payload: str, hints: object) -> None:
    assert parse_hint(payload) == hints


class Hints:
    def __init__(self) -> None:
        self.all: list[tuple[str, str | None]] = []
        self._came = asyncio.Event()

    def __call__(self, kind: str, id_: str | None) -> None:
        self.all.append((kind, id_))
        self._came.set()

    async def number(self, n: int) -> list[tuple[str, str | None]]:
        """Waits for the first `n` hints."""
        async with asyncio.timeout(20):
            while len(self.all) < n:
                self._came.clear()
                await self._came.wait()
        return self.all[:n]


@asynccontextmanager
async def feeding(connect: Connect, hints: Hints, **more: Any) -> AsyncIterator[ChangeFeed]:
    feed = ChangeFeed(connect, hints, SystemClock(), backoff=Backoff(base_s=0.05, max_s=0.2), **more)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert feed.connected_at is None
    assert feed.last_probe_age_s is None


async def test_the_first_hint_is_everything_then_changes_follow(connect: Connect) -> None:
    hints = Hints()
    async with feeding(connect, hints) as feed:
        await hints.number(1)
        assert feed.connected_at is not None
        sender = await connect()
        for payload in ("instance 1 2", "worker *", "gibberish"):
            await sender.execute("SELECT pg_notify('gpuward', $1)", payload)
        assert await hints.number(5) == [
            EVERYTHING,
            ("instance", "1"),
            ("instance", "2"),
            ("worker", None),
            EVERYTHING,
        ]


async def test_a_killed_connection_is_replaced_and_everything_is_resynced(connect: Connect) -> None:
    hints = Hints()
    async with feeding(connect, hints) as feed:
        await hints.number(1)
        first = feed.connected_at
        killer = await connect()
        await killer.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert await hints.number(2) == [EVERYTHING, EVERYTHING]
        assert feed.connected_at != first
        await killer.execute("NOTIFY gpuward, 'instance 3'")
        assert (await hints.number(3))[-1] == ("instance", "3")


async def test_the_probe_detects_a_connection_that_does_not_answer(connect: Connect) -> None:
    hints = Hints()
    connections: list[Any] = []

    async def kept() -> Any:
        connection = await connect()
        connections.append(connection)
        return connection

    async with feeding(kept, hints, probe_s=0.1, probe_timeout_s=1.0) as feed:
        await hints.number(1)
        await asyncio.sleep(0.3)
        assert feed.last_probe_age_s is not None
        assert feed.last_probe_age_s < 1.5
        # The server is alive but does not answer, as from an unreachable host: only the probe detects it.
        connections[0]._transport.pause_reading()
        assert await hints.number(2) == [EVERYTHING, EVERYTHING]
        assert len(connections) == 2


async def test_an_unreachable_database_is_retried_until_it_answers(connect: Connect) -> None:
    hints = Hints()
    refusals = 3

    async def refusing() -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise ConnectionRefusedError("connection refused")
        return await connect()

    async with feeding(refusing, hints):
        assert await hints.number(1) == [EVERYTHING]
    assert refusals == 0


async def test_a_cancel_while_connecting_ends_at_once() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    async with feeding(never, Hints()) as feed:
        await asyncio.sleep(0.05)
        assert feed.connected_at is None
