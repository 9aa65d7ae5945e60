"""Watchers share one reader: what one read finds, all are told; a failed read ends all; it ends late."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import orjson
import pytest

from controller.live import object_feed, shared_feed
from controller.live.change_fanout import ChangeFanout
from controller.live.errors import WatchEndedError
from controller.live.object_feed import ObjectFeed, ObjectStream, Wanted
from controller.live.objects import Batch, Update
from controller.store.core.database import Database, Reader
from support.database.ledger import add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi

LIMIT_S = 20.0
ALL = Wanted()


@pytest.fixture
def feed(db: Database) -> ObjectFeed:
    return ObjectFeed(db, ChangeFanout())


async def told(stream: ObjectStream) -> list[dict[str, Any]]:
    async with asyncio.timeout(LIMIT_S):
        return [orjson.loads(m) for batch in await stream.take() for m in batch.messages(stream.wanted)]


async def worker_told(stream: ObjectStream) -> dict[str, Any]:
    while True:
        for one in await told(stream):
            if one["object"]["kind"] == "Worker":
                return one


async def test_claims_that_come_and_go_are_told_of_their_worker(db: Database) -> None:
    changes = ChangeFanout()
    feed = ObjectFeed(db, changes)
    host = await add_host(db, "w", gpus=2)
    uid = await add_deployment(db, "d")
    await add_instance(db, uid, "d-1", phase="running", epoch=1)
    async with feed.watch(ALL) as stream:
        stream.snapshot()
        await claim(db, host.gpus[0], "d-1", 1024)
        changes.publish("status", uid)
        assert (await worker_told(stream))["object"]["status"]["claimed_mib"] == 1024
        async with db.transaction() as connection:
            await connection.execute("delete from claims")
            await connection.execute("update workers set deleted_at = now()")
        changes.publish("process", uid)
        assert (await worker_told(stream))["type"] == "gone"
    await feed.stop()


async def test_what_the_clock_changes_is_read_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_feed, "SWEEP_S", 0.1)
    feed = ObjectFeed(db, ChangeFanout())
    host = await add_host(db, "quarantined", phase="unreachable")
    other = await add_host(db, "dropping")
    async with db.transaction() as connection:
        await connection.execute(
            "insert into worker_liveness (worker_id, session, connected, last_seen) values ($1, 1, true, now())",
            host.id,
        )
        await connection.execute(
            "update workers set quarantined_until = clock_timestamp() + $2::interval where id = $1",
            host.id, timedelta(seconds=1),
        )  # fmt: skip
        await connection.execute(
            """update workers set samples_dropped = 'x', samples_dropped_at = clock_timestamp() - $2::interval
                where id = $1""",
            other.id, timedelta(seconds=599),
        )  # fmt: skip
    async with feed.watch(ALL) as stream:
        before = {one["name"]: one["status"] for one in orjson.loads(stream.snapshot())["object"]["workers"]}
        assert before["quarantined"]["state"] == "quarantined"
        assert before["dropping"]["conditions"]
        after: dict[str, Any] = {}
        while len(after) < 2:
            after |= {one["object"]["name"]: one["object"]["status"] for one in await told(stream)}
        assert after["quarantined"]["state"] == "unreachable"
        assert not after["dropping"]["conditions"]
    await feed.stop()


def readers() -> int:
    return sum(task.get_name() == "object-feed" and not task.done() for task in asyncio.all_tasks())


async def test_watchers_share_a_reader(db: Database) -> None:
    changes = ChangeFanout()
    feed = ObjectFeed(db, changes)
    uid = await add_deployment(db, "d")
    async with feed.watch(ALL) as one:
        async with feed.watch(Wanted(frozenset({"deployments"}), "other")) as two, feed.watch(ALL) as three:
            assert readers() == 1
            for stream in (one, two, three):
                stream.snapshot()
            async with db.transaction() as connection:
                await connection.execute("update deployments set message = 'new'")
            changes.publish("status", uid)
            async with asyncio.timeout(LIMIT_S):
                (batch,), (same,) = await one.take(), await three.take()
            assert batch is same
            assert batch.frames(ALL) is same.frames(ALL)
            assert batch.messages(two.wanted) == []
        assert readers() == 1
    await feed.stop()
    assert readers() == 0


async def test_who_comes_back_soon_costs_no_new_read(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = object_feed.deployments_by_uid

    async def counted(connection: Reader, uids: Collection[str] | None) -> Any:
        nonlocal reads
        reads += uids is None
        return await read(connection, uids)

    monkeypatch.setattr(object_feed, "deployments_by_uid", counted)
    changes = ChangeFanout()
    feed = ObjectFeed(db, changes)
    uid = await add_deployment(db, "d")
    for n in range(20):
        async with db.transaction() as connection:
            await connection.execute("update deployments set message = $1", str(n))
        changes.publish("status", uid)
        async with feed.watch(ALL) as stream:  # without a watcher all changes are taken too
            while (shown := orjson.loads(stream.snapshot())["object"]["deployments"][0])["status"]["message"] != str(n):
                await told(stream)
            assert shown["name"] == "d"
    assert (reads, readers()) == (1, 1)
    monkeypatch.setattr(shared_feed, "LINGER_S", 0.0)
    async with feed.watch(ALL):
        pass
    async with asyncio.timeout(LIMIT_S):
        for task in [task for task in asyncio.all_tasks() if task.get_name() == "object-feed"]:
            await asyncio.wait({task})  # it ends by itself
    monkeypatch.setattr(shared_feed, "LINGER_S", 3600.0)
    async with feed.watch(ALL):
        pass
    assert (reads, readers()) == (2, 1)
    await feed.stop()
    assert readers() == 0
    with pytest.raises(WatchEndedError):
        async with feed.watch(ALL):
            pass
    assert readers() == 0


async def test_what_changes_before_the_snapshot_is_in_it(db: Database) -> None:
    changes = ChangeFanout()
    feed = ObjectFeed(db, changes)
    uid = await add_deployment(db, "d")
    async with feed.watch(ALL) as late, feed.watch(ALL) as early:
        early.snapshot()
        async with db.transaction() as connection:
            await connection.execute("update deployments set message = 'new'")
        changes.publish("status", uid)
        assert (await told(early))[0]["object"]["status"]["message"] == "new"
        (shown,) = orjson.loads(late.snapshot())["object"]["deployments"]
        assert shown["status"]["message"] == "new"
        assert not late._waiting
    await feed.stop()


async def test_a_failed_read_ends_all_watchers(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ChangeFanout()
    feed = ObjectFeed(db, changes)
    async with feed.watch(ALL) as one, feed.watch(ALL) as two:

        async def fails(*_: Any) -> Any:
            raise OSError("the database is away")

        with monkeypatch.context() as patched:
            patched.setattr(object_feed, "deployments_by_uid", fails)
            changes.publish("*", None)
            for stream in (one, two):
                with pytest.raises(WatchEndedError):
                    await told(stream)
            with pytest.raises(WatchEndedError):
                async with feed.watch(ALL):
                    pass
        async with feed.watch(ALL) as again:
            assert orjson.loads(again.snapshot())["type"] == "snapshot"
    await feed.stop()


def begun() -> ObjectStream:
    stream = ObjectStream(ALL)
    stream.attach(bytes)
    stream.snapshot()
    return stream


async def test_a_watcher_that_falls_behind_is_ended() -> None:
    stream = begun()
    for n in range(shared_feed.MAX_BATCHES + 1):
        stream.put(Batch((Update("Worker", "", b"%d" % n),)))
    with pytest.raises(WatchEndedError):
        await stream.take()
    large = begun()
    large.put(Batch((Update("Worker", "", b"x" * (shared_feed.MAX_WAITING_BYTES + 1)),)))
    assert len(await large.take()) == 1  # one always fits
    large.put(Batch((Update("Worker", "", b"x"),)))
    large.put(Batch((Update("Worker", "", b"x" * shared_feed.MAX_WAITING_BYTES),)))
    with pytest.raises(WatchEndedError):
        await large.take()


async def test_parameters_of_a_watch(api: ServedApi, db: Database) -> None:
    for name in ("a", "b"):
        await add_instance(db, await add_deployment(db, name), f"{name}-1")
    await add_host(db, "w")
    status, body = await api.call("GET", "/api/v1/watch?kinds=deployments,gpu")
    assert (status, body["error"]["details"]["problems"][0]["path"]) == (400, "kinds")
    url = f"{api.url}/api/v1/watch?kinds=deployments,instances,policies&deployment=a"
    async with api.session.get(url, headers=api.header("viewer")) as answer, asyncio.timeout(LIMIT_S):
        await answer.content.readline()
        first = orjson.loads((await answer.content.readline()).removeprefix(b"data: "))
    found = {kind: [one["name"] for one in listed] for kind, listed in first["object"].items()}
    assert found == {"deployments": ["a"], "instances": ["a-1"], "policies": []}


async def test_the_watches_of_a_key_are_bounded(api: ServedApi) -> None:
    url = f"{api.url}/api/v1/watch"
    async with AsyncExitStack() as stack:
        for _ in range(64):
            answer = await stack.enter_async_context(api.session.get(url, headers=api.header("viewer")))
            assert answer.status == 200
        status, body = await api.call("GET", "/api/v1/watch", role="viewer")
        assert (status, body["error"]["code"]) == (429, "too_many_watches")
        async with api.session.get(url, headers=api.header("operator")) as other:
            assert other.status == 200
    async with asyncio.timeout(LIMIT_S):
        while True:
            async with api.session.get(url, headers=api.header("viewer")) as answer:
                if answer.status == 200:
                    break
            await asyncio.sleep(0.05)
