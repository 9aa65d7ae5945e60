"""The topic `logs` of a deployment: all its processes on one socket, each item with its instance and rank."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from controller.api.audit_trail import TRAIL
from controller.api.merged_logs import merge
from controller.api.resources.logs import FOLLOWED, MERGES
from controller.store.core.database import Database
from support.database.ledger import report
from support.leading.live_tab import LIMIT_S, Tab, tab
from support.leading.served_api import ServedApi
from support.standins.agent_logs import BASE_MS, AgentDouble, Logs, frames

END = b'E{"reason": "exit", "exit_code": 3, "message": "", "at_ms": %d}\n' % (BASE_MS + 3000)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_REFRESH_S", 0.05)


@pytest.fixture
async def logs(api: ServedApi, db: Database) -> AsyncIterator[Logs]:
    async with AsyncExitStack() as stack:
        yield Logs(api, db, stack)


async def stays(_: web.StreamResponse) -> None:
    await asyncio.Event().wait()


async def ends(response: web.StreamResponse) -> None:
    await response.write(END)


async def items(one: Tab, number: int, *, found: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """The next so many items of lines."""
    found = [] if found is None else found
    while len(found) < number:
        found += (await one.of(1, "lines"))["items"]
    return found


def short(item: dict[str, Any]) -> tuple[str, int, int, str]:
    words = item["line"] if "line" in item else item["end"]["words"] if "end" in item else item["note"]["code"]
    return item["instance"], item["rank"], item["epoch"], words


async def test_all_processes_come_merged_and_one_end_is_not_the_end_of_all(logs: Logs) -> None:
    first, second = AgentDouble(), AgentDouble()
    first.there = {"d-1/0": frames((100, "a"), (300, "c")), "d-1/1": frames((200, "b"))}
    first.say = {"d-1/0": ends, "d-1/1": stays}
    second.there, second.say = {"d-2/0": frames((50, "new"))}, {"d-2/0": stays}
    await logs.add("d-1", first, ranks=(0, 1))
    async with tab(logs.api, "operator") as one:
        await one.open(1, "logs", deployment="d", tail=50, since="1h")
        assert await one.next() == {"id": 1, "type": "opened"}
        sources = [{"instance": "d-1", "rank": rank, "epoch": 1} for rank in (0, 1)]
        assert await one.next() == {"id": 1, "type": "sources", "sources": sources}
        found = await items(one, 4)
        assert sorted(map(short, found)) == [
            ("d-1", 0, 1, "a"), ("d-1", 0, 1, "c"), ("d-1", 0, 1, "exited with code 3 at 2027-01-15T08:00:03.000Z"),
            ("d-1", 1, 1, "b"),
        ]  # fmt: skip
        assert [item["line"] for item in found if "line" in item] == ["a", "b", "c"]
        assert found[0]["position"] == 0
        assert found[0]["at"] == "2027-01-15T08:00:00.100Z"
        assert first.asked[0].keys() == {"follow", "tail", "since_ms", "times", "rank", "epoch"}
        await logs.add("d-2", second)  # a new replica joins
        told = await one.of(1, "sources")
        assert told["sources"][-1] == {"instance": "d-2", "rank": 0, "epoch": 1}
        assert short((await items(one, 1))[0]) == ("d-2", 0, 1, "new")
        await one.open(2, "events")  # the socket carries other topics beside
        await one.of(2, "opened")
        await one.close(1)
        assert await one.of(1, "end") == {"id": 1, "type": "end", "reason": "closed"}
    async with asyncio.timeout(LIMIT_S):
        while True:
            if not len(logs.api.app[MERGES]):
                break
            await asyncio.sleep(0.05)


async def test_it_goes_on_where_it_broke_off_and_ends_with_the_instance(logs: Logs, db: Database) -> None:
    agent = AgentDouble()
    agent.there, agent.say = {"d-1/0": frames((0, "one"), (1000, "two"), (2000, "three"))}, {"d-1/0": stays}
    await logs.add("d-1", agent)
    async with tab(logs.api, "operator") as one:
        at = f"d-1/0/1/{len('one') + 1}/{BASE_MS + 1000}"
        await one.open(1, "logs", deployment="d", instance="d-1", tail=10, after=[at])
        assert [short(item)[3] for item in await items(one, 1)] == ["three"]
        assert agent.asked[0] == {
            "follow": "1", "since_ms": str(BASE_MS + 1000), "times": "1", "rank": "0", "epoch": "1",
        }  # fmt: skip
    agent.say["d-1/0"] = ends
    async with tab(logs.api, "operator") as one:
        await report(db, "d-1", "running")
        async with db.transaction() as connection:
            await connection.execute("update instances set phase = 'succeeded'")
        await one.open(1, "logs", deployment="d", instance=["d-1"])
        assert len(await items(one, 4)) == 4
        assert await one.next() == {"id": 1, "type": "end", "reason": "finished"}


async def test_the_rest_of_a_start_that_was_replaced_while_the_client_was_away(logs: Logs, db: Database) -> None:
    agent = AgentDouble()
    agent.there["d-1/0"] = frames((0, "one"), (1000, "last words"))
    agent.say["d-1/0"] = then_the_next
    await logs.add("d-1", agent)
    await report(db, "d-1", "exited")
    async with db.transaction() as connection:
        await connection.execute("update instances set epoch = 2")
    await report(db, "d-1", "running")
    async with tab(logs.api, "operator") as one:
        await one.open(1, "logs", deployment="d", tail=10, after=[f"d-1/0/1/0/{BASE_MS}", "d-1/0/9/0/1", "x/0/1/0/1"])
        told = await one.of(1, "sources")
        assert told["sources"] == [{"instance": "d-1", "rank": 0, "epoch": 2}]
        found = await items(one, 3)
        assert {(item["epoch"], item.get("line")) for item in found if "line" in item} >= {(1, "last words")}
        assert not any(item["epoch"] == 1 and item.get("line") == "one" for item in found)
    assert {asked["epoch"] for asked in agent.asked} == {"1", "2"}


async def then_the_next(response: web.StreamResponse) -> None:
    assert response._req is not None
    await (ends if response._req.query["epoch"] == "1" else stays)(response)


async def test_an_instance_that_the_deployment_lacks_is_named(logs: Logs) -> None:
    await logs.add("d-1", AgentDouble())
    for path in ("instance=nope", "instance=d-1&instance=nope&follow=true", "instance=nope&format=json"):
        text = await logs.read(f"/deployments/d/logs?{path}", 404)
        assert "deployment 'd' has no instance 'nope'" in text, path
    async with tab(logs.api, "operator") as one:
        await one.open(1, "logs", deployment="d", instance="nope")
        assert (await one.next())["error"]["code"] == "not_found"


async def test_what_is_refused(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = AgentDouble()
    agent.there, agent.say = {"d-1/0": frames((0, "one"))}, {"d-1/0": stays}
    await logs.add("d-1", agent)
    async with tab(logs.api, "viewer") as viewer:
        await viewer.open(1, "logs", deployment="d")
        assert (await viewer.next())["error"]["code"] == "forbidden"
    async with tab(logs.api, "operator") as one:
        for wrong, field in (
            ({"previous": True}, "previous"),
            ({"rank": "x"}, "rank"),
            ({"tail": -1}, "tail"),
            ({"since": "soon"}, "since"),
            ({"after": "d-1/0/1"}, "after"),
            ({"after": "d-1/0/1/²/4"}, "after"),
            ({"after": f"d-1/0/1/{'9' * 5000}/4"}, "after"),
        ):
            await one.open(1, "logs", deployment="d", **wrong)
            error = (await one.next())["error"]
            assert [problem["path"] for problem in error["details"]["problems"]] == [field], error
        await one.open(1, "logs", instance="d-1", rank=1)
        assert (await one.next())["error"]["details"]["problems"][0]["path"] == "rank"
        await one.open(1, "logs", deployment="none")
        assert (await one.next())["error"]["code"] == "not_found"
        monkeypatch.setattr(logs.api.app[MERGES], "of_key", 2)
        for number in (1, 2):
            await one.open(number, "logs", deployment="d")
            await one.of(number, "opened")
        await one.open(3, "logs", deployment="d")
        assert (await one.of(3, "error"))["error"]["code"] == "too_many_merged_logs"
        text = await logs.read("/deployments/d/logs", 429)
        assert "2 merged logs of this key are open" in text
        async with tab(logs.api, "admin") as other:  # another key has its own
            await other.open(1, "logs", deployment="d")
            await other.of(1, "opened")


async def test_a_key_follows_a_bounded_number_of_logs(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    share = logs.api.app[FOLLOWED]
    assert (share.of_key, share.total) == (64, 256)
    agent = AgentDouble(timed=False)
    agent.there, agent.say = {"d-1/0": [b"a line\n"]}, {"d-1/0": stays}
    await logs.add("d-1", agent)
    monkeypatch.setattr(share, "of_key", 2)
    monkeypatch.setattr(share, "total", 3)
    path = "/instances/d-1/logs?follow=true"
    followed = logs.api.session.get(f"{logs.api.url}/api/v1{path}", headers=logs.api.header("operator"))
    async with tab(logs.api, "operator") as one, tab(logs.api, "admin") as other, followed as answer:
        assert await answer.content.readline() == b"a line\n"
        await one.open(1, "logs", instance="d-1")
        await one.of(1, "log")
        assert len(share) == 2
        await one.open(2, "logs", instance="d-1")
        assert (await one.of(2, "error"))["error"]["code"] == "too_many_followed_logs"
        assert "2 followed logs of this key are open" in await logs.read(path, 429)
        assert await logs.read("/instances/d-1/logs") == "a line\n", "what is not followed ends by itself"
        await other.open(1, "logs", instance="d-1")  # another key has its own
        await other.of(1, "log")
        await other.open(2, "logs", instance="d-1")
        error = (await other.of(2, "error"))["error"]
        assert (error["code"], error["message"][:19]) == ("too_many_followed_logs", "3 followed logs are")
        await one.close(1)
        await one.of(1, "end")
        await one.open(1, "logs", instance="d-1")
        await one.of(1, "log")
    async with asyncio.timeout(LIMIT_S):
        while len(share):  # noqa: ASYNC110 - the server notices by itself
            await asyncio.sleep(0.05)


async def test_each_read_of_a_log_leaves_an_entry_as_it_starts(logs: Logs) -> None:
    agent = AgentDouble()
    agent.there, agent.say = {"d-1/0": frames((100, "a"))}, {"d-1/0": stays}
    await logs.add("d-1", agent)

    async def read() -> list[tuple[str, str, str, str]]:
        async with asyncio.timeout(LIMIT_S):
            while logs.api.app[TRAIL].pending:  # noqa: ASYNC110 - a task writes it
                await asyncio.sleep(0.02)
        found = (await logs.api.get("/api/v1/audit-log"))["items"]
        return [(one["actor"], one["action"].split("/")[-1], one["object"], one["outcome"]) for one in found]

    async with tab(logs.api, "operator") as one:
        await one.open(1, "logs", deployment="d")
        await one.of(1, "lines")  # and it goes on
        assert await read() == [("key:operator", "live", "deployments/d/logs", "done")]
    await logs.read("/deployments/d/logs")
    await logs.read("/instances/d-1/logs?tail=1&format=json")
    await logs.read("/deployments/none/logs", 404)  # nothing is read
    assert await read() == [
        ("key:operator", "logs", "instances/d-1/logs", "done"),
        ("key:operator", "logs", "deployments/d/logs", "done"),
        ("key:operator", "live", "deployments/d/logs", "done"),
    ]
    assert (await logs.api.call("GET", "/api/v1/instances/d-1/logs", role="viewer"))[0] == 403
    async with tab(logs.api, "viewer") as one:
        await one.open(1, "logs", deployment="d")
        await one.of(1, "error")
    assert (await read())[:2] == [
        ("key:viewer", "live", "deployments/d/logs", "refused"),
        ("key:viewer", "logs", "instances/d-1/logs", "refused"),
    ]
