"""A database that accepts connections and answers nothing: no request waits for it for long, and few wait at all."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from controller.live.change_fanout import ChangeFanout
from controller.live.key_ring import Principal
from gateway.errors import GatewayError
from gateway.quotas import quota_client
from gateway.quotas.quota_client import QuotaClient
from gateway.requests.request import DATABASE_S, Request
from gateway.routing import live_routes
from gateway.routing.live_routes import LiveRoutes
from schemas.key_limits import KeyLimits

LIMIT_S = 0.1
SLACK_S = 1.0  # on a loaded machine


class Frozen:
    """The database. `asked`: how often."""

    def __init__(self) -> None:
        self.hangs = False
        self.asked = 0

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Any]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        yield None

    transaction = snapshot


@pytest.fixture
async def database(monkeypatch: pytest.MonkeyPatch) -> Frozen:
    async def read(_reader: Any, _: Any) -> Any:
        return SimpleNamespace(models={}, stopped={}), []

    monkeypatch.setattr(live_routes.EndpointReader, "read", read)
    monkeypatch.setattr(live_routes, "_RECHECK_PAUSE_S", 0.0)
    return Frozen()


async def refused_after(routes: LiveRoutes) -> float:
    began = time.monotonic()
    with pytest.raises(GatewayError) as caught:
        await routes.recheck(LIMIT_S)
    assert (caught.value.status, caught.value.code) == (503, "unavailable")
    return time.monotonic() - began


async def test_what_one_request_has_waited_for_in_vain_the_next_does_not(
    database: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the task has noticed it, which takes `READ_LIMIT_S`."""
    known: Any = database
    routes = LiveRoutes(known, ChangeFanout())
    await routes.recheck(SLACK_S)
    database.hangs = True
    assert LIMIT_S * 0.9 <= await refused_after(routes) < LIMIT_S + SLACK_S
    asked = database.asked
    for _ in range(50):
        await refused_after(routes)
    assert database.asked == asked, "none of them asked"
    database.hangs = False
    monkeypatch.setattr(live_routes, "_HANGS_FOR_S", 0.0)
    routes._hangs_until = float("-inf")  # its time is over
    await routes.recheck(SLACK_S)
    await routes.stop()


async def test_all_waits_of_a_request_share_one_second() -> None:
    """For its key, for a share of its limits, and for the routes."""
    waiting = object.__new__(Request)
    waiting.loop, waiting._database_s = asyncio.get_running_loop(), DATABASE_S
    told: list[float] = []

    async def ask(limit_s: float) -> None:
        told.append(limit_s)
        await asyncio.sleep(0.2)

    for _ in range(3):
        await waiting.of_database(ask)
    assert told[0] == DATABASE_S
    assert told[0] - told[1] >= 0.19
    assert told[1] - told[2] >= 0.19
    waiting._database_s = 0.1
    await waiting.of_database(ask)
    assert waiting._database_s == 0.0


async def test_a_request_waits_for_a_share_no_longer_than_it_may(database: Frozen) -> None:
    database.hangs = True
    known: Any = database
    limits = QuotaClient(known)
    limits.start()
    owner = Principal("k", "k", "inference", limits=KeyLimits(rpm=6))
    began = time.monotonic()
    assert await limits.wait(owner, "/v1/chat/completions", LIMIT_S), "this gateway's part decides"
    assert time.monotonic() - began < min(LIMIT_S + SLACK_S, quota_client.ANSWER_S + SLACK_S)
    await limits.stop()
