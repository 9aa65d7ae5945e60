"""Logs by time through the API: of one instance and of all of a deployment, from agents old and new."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from controller.store.core.database import Database
from support.database.ledger import report
from support.leading.served_api import ServedApi
from support.standins.agent_logs import BASE_MS, AgentDouble, Logs, frames


@pytest.fixture
async def logs(api: ServedApi, db: Database) -> AsyncIterator[Logs]:
    async with AsyncExitStack() as stack:
        yield Logs(api, db, stack)


def objects(text: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, text.splitlines())


async def test_lines_of_all_replicas_and_ranks_are_merged_by_time(logs: Logs) -> None:
    one, two = AgentDouble(), AgentDouble()
    one.there["d-1/0"] = frames((100, "a"), (400, "d"))
    one.there["d-1/1"] = frames((200, "b"), (200, "b2"))
    two.there["d-2/0"] = frames((300, "c"), (50, "clock set back"), (500, "e"), exact=0)
    await logs.add("d-1", one, ranks=(0, 1))
    await logs.add("d-2", two)
    text = await logs.read("/deployments/d/logs?timestamps=true")
    assert text.splitlines() == [
        "[d-1 rank 0] 2027-01-15T08:00:00.100Z a",
        "[d-1 rank 1] 2027-01-15T08:00:00.200Z b",
        "[d-1 rank 1] 2027-01-15T08:00:00.200Z b2",
        "[d-2 rank 0] 2027-01-15T08:00:00.300Z c",
        "[d-2 rank 0] 2027-01-15T08:00:00.050Z clock set back",
        "[d-1 rank 0] 2027-01-15T08:00:00.400Z d",
        "[d-2 rank 0] 2027-01-15T08:00:00.500Z e",
    ]
    found = list(objects(await logs.read("/deployments/d/logs?format=json&since=10m&tail=5")))
    assert found[3] == {
        "instance": "d-2", "rank": 0, "epoch": 1, "at": "2027-01-15T08:00:00.300Z", "exact": False, "position": 0,
        "line": "c",
    }  # fmt: skip
    assert two.asked[-1].keys() == {"tail", "since_ms", "times", "rank"}
    assert [one["line"] for one in objects(await logs.read("/deployments/d/logs?format=json&rank=1"))] == ["b", "b2"]
    assert (await logs.read("/deployments/d/logs?instance=d-2")).splitlines()[0] == "[d-2] c"
    assert (await logs.read("/instances/d-1/logs?rank=1&timestamps=true")).splitlines()[0].endswith("Z b")


async def test_an_older_agents_lines_come_without_times_and_it_is_said(logs: Logs) -> None:
    old, new = AgentDouble(timed=False), AgentDouble()
    old.there["d-1/0"] = [b"no end", b" of line\nlast"]
    new.there["d-2/0"] = frames((0, "new"))
    await logs.add("d-1", old)
    await logs.add("d-2", new)
    found = list(objects(await logs.read("/deployments/d/logs?format=json&since=1m")))
    assert [one["note"]["code"] for one in found if "note" in one] == ["no_times"]
    lines = [(one["instance"], one["at"], one["line"]) for one in found if "line" in one]
    assert lines == [("d-1", None, "no end of line"), ("d-1", None, "last"), ("d-2", "2027-01-15T08:00:00.000Z", "new")]
    text = await logs.read("/instances/d-1/logs?timestamps=true")
    assert text.splitlines()[0].startswith("gpuward: the agent of worker 'w-d-1-0' is too old")
    assert text.splitlines()[1:] == ["- no end of line", "- last"]


async def test_what_cannot_be_read_is_noted_and_the_rest_comes(logs: Logs) -> None:
    await logs.add("d-1", AgentDouble())
    broken = AgentDouble()
    broken.there["d-2/0"] = [b"L1 nonsense\n"]
    await logs.add("d-2", broken)
    good = AgentDouble()
    good.there["d-3/0"] = frames((0, "x"))
    await logs.add("d-3", good)
    async with logs.db.transaction() as connection:
        await connection.execute("update workers set proxy_address = '127.0.0.1:1' where name = 'w-d-1-0'")
    found = list(objects(await logs.read("/deployments/d/logs?format=json")))
    assert {one["instance"]: one["note"]["code"] for one in found if "note" in one} == {
        "d-1": "worker_unreachable", "d-2": "log_malformed",
    }  # fmt: skip
    assert [one["line"] for one in found if "line" in one] == ["x"]


async def test_a_followed_log_goes_on_after_its_agent_was_away_and_with_the_next_start(logs: Logs) -> None:
    agent = AgentDouble()
    agent.there["d-1/0"] = frames((0, "one"), (1000, "two"))

    async def breaks_off(response: web.StreamResponse) -> None:
        agent.there["d-1/0"] = frames((0, "one"), (1000, "two"), (2000, "while it was away"))
        agent.say["d-1/0"] = ends
        assert response._req is not None
        assert response._req.transport is not None
        response._req.transport.abort()

    async def ends(response: web.StreamResponse) -> None:
        await response.write(b'E{"reason": "exit", "exit_code": 3, "message": "", "at_ms": %d}\n' % (BASE_MS + 3000))
        agent.there["d-1/0"] = frames((4000, "next start"))
        agent.say["d-1/0"] = lasts
        async with logs.db.transaction() as connection:
            await connection.execute("update instances set epoch = 2")
        await report(logs.db, "d-1", "running")

    async def lasts(response: web.StreamResponse) -> None:
        await response.write(b'E{"reason": "exit", "exit_code": 0, "message": "", "at_ms": null}\n')
        async with logs.db.transaction() as connection:
            await connection.execute("update instances set phase = 'succeeded'")

    agent.say["d-1/0"] = breaks_off
    await logs.add("d-1", agent)
    async with asyncio.timeout(30):
        found = [
            one.get("line") or one.get("note", {}).get("code") or one["end"]["words"]
            async for one in logs.follow("/deployments/d/logs?follow=true&format=json")
        ]
    assert found == [
        "one", "two", "worker_unreachable", "while it was away", "exited with code 3 at 2027-01-15T08:00:03.000Z",
        "next start", "exited with code 0",
    ]  # fmt: skip
    assert [asked["epoch"] for asked in agent.asked] == ["1", "1", "2"]


async def test_bounds(logs: Logs) -> None:
    agent = AgentDouble()
    for n in range(65):
        agent.there[f"d-{n}/0"] = frames((n, str(n)))
    await logs.add("d-0", agent, ranks=range(65))
    assert json.loads(await logs.read("/deployments/d/logs", 409))["error"]["code"] == "too_many_logs"
    assert await logs.read("/deployments/d/logs?rank=0") == "[d-0] 0\n"
    for wrong in ("since=soon", "format=xml", "rank=x", "other=1", "tail=-1"):
        assert json.loads(await logs.read(f"/deployments/d/logs?{wrong}", 400))["error"]["code"] == "invalid"
    await logs.read("/deployments/none/logs", 404)
