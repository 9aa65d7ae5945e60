"""No answer to a caller that may read no logs holds a line of a log, whatever tells it and wherever it is stored."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from controller.domain.access.redaction import BEGIN, END, quote
from controller.domain.events import NewEvent
from controller.live import event_feed
from controller.store.core.database import Database
from controller.store.core.events import write_events
from support.database.ledger import add_deployment, add_host, add_instance, claim
from support.leading.all_answers import told
from support.leading.live_tab import tab
from support.leading.served_api import ServedApi, served

LINE = 'ValueError: "prompt" of user 4711\\'
MESSAGE = quote(f"exited with code 1: {LINE}; restarts in 10 s", LINE)


@pytest.fixture
async def crashed(db: Database) -> Database:
    """Whatever has a message quotes the line."""
    host = await add_host(db, "w", gpus=1, gib=8)
    uid = await add_deployment(db, "d", replicas=2)
    for name, phase in (("a", "backoff"), ("b", "pending"), ("c", "failed")):
        await add_instance(db, uid, name, phase=phase, epoch=1)
    await claim(db, host.gpus[0], "a", 1024)
    event = NewEvent("backoff", MESSAGE, ("instance:a", f"deployment:{uid}", f"worker:{host.id}"), {"agent": MESSAGE})
    async with db.transaction() as connection:
        await connection.execute("update instances set reason = 'crash', failures = 5, restarts = 5")
        await connection.execute("update deployments set phase = 'failed', reason = 'crash'")
        await connection.execute("update workers set conditions = $1", [_condition()])
        columns = await connection.fetch(
            """select table_name, column_name from information_schema.columns
                where table_schema = 'public' and data_type = 'text' and column_name in ('message', 'why', 'detail')
                  and table_name in ('instances', 'deployments', 'processes', 'rollouts', 'relocations', 'verdicts')"""
        )
        assert ("instances", "message") in {tuple(row) for row in columns}
        for table, column in columns:
            await connection.execute(f"update {table} set {column} = $1", MESSAGE)  # noqa: S608 - of the schema
        await write_events(connection, [event])
    return db


def _condition() -> dict[str, Any]:
    return {"type": "GpusReadable", "status": "false", "reason": "gpus_unreadable", "message": MESSAGE, "since": None}


def quoting(answers: dict[str, str]) -> set[str]:
    return {path for path, text in answers.items() if "user 4711" in text}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "POLL_S", 0.05)


@pytest.fixture
async def open_api(crashed: Database) -> AsyncIterator[ServedApi]:
    async with served(crashed, viewers_read_logs=True) as running:
        yield running


@pytest.mark.usefixtures("crashed")
async def test_no_answer_to_a_viewer_holds_a_line_of_a_log(api: ServedApi) -> None:
    viewers, operators = await told(api, "viewer"), await told(api, "operator")
    shown = quoting(operators)
    assert shown >= {
        "/api/v1/instances", "/api/v1/instances/a", "/api/v1/deployments", "/api/v1/deployments/d", "/api/v1/events",
        "/api/v1/pending", "/api/v1/attention", "/api/v1/workers", "watch", "objects", "events",
    }, shown  # fmt: skip
    assert quoting(viewers) == set()
    assert all("a line of its log, withheld" in viewers[path] for path in shown)
    for path, text in (viewers | operators).items():
        assert not {BEGIN, END, "\\ufdd0", "\\ufdd1"} & set(text), path
        assert BEGIN not in text, path
    instance = orjson.loads(operators["/api/v1/instances/a"])
    assert instance["status"]["message"] == f"exited with code 1: {LINE}; restarts in 10 s"
    instance = orjson.loads(viewers["/api/v1/instances/a"])
    assert instance["status"]["message"] == "exited with code 1: (a line of its log, withheld); restarts in 10 s"


async def test_viewers_get_it_where_they_may_read_logs(open_api: ServedApi) -> None:
    async with asyncio.timeout(20):
        assert "/api/v1/instances/a" in quoting(await told(open_api, "viewer"))


@pytest.mark.usefixtures("crashed")
async def test_changes_are_told_without_it(api: ServedApi, db: Database) -> None:
    async with tab(api, "viewer") as viewer, tab(api, "operator") as operator:
        for one in (viewer, operator):
            await one.open(1, "objects", kinds=["instances"])
            await one.of(1, "snapshot")
            await one.open(2, "events")
            await one.of(2, "opened")
        async with db.transaction() as connection:
            await connection.execute("update instances set failures = 6, message = $1 where id = 'a'", MESSAGE + "!")
            await write_events(connection, [NewEvent("backoff", MESSAGE, ("instance:a",))])
        api.changes.publish("*", None)
        for one, quotes in ((viewer, False), (operator, True)):
            told: dict[str, str] = {}
            while not {"changed", "event"} <= told.keys():  # the two topics come in any order
                message = await one.next()
                told[message["type"]] = str(message)
            assert [kind for kind in ("changed", "event") if ("user 4711" in told[kind]) != quotes] == []
