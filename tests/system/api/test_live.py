"""The live socket: topics side by side on one connection, their ends and errors, and the bounds."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from controller.api import streams
from controller.api.live_socket import handler
from controller.api.live_socket.handler import MAX_WAITING_BYTES, Outbox
from controller.domain.events import NewEvent
from controller.live import event_feed, gpu_feed
from controller.store.access.keys import create_key, revoke_key
from controller.store.core.database import Database
from controller.store.core.events import write_events
from support.database.ledger import add_deployment, add_host, add_instance, claim, report
from support.leading.live_tab import LIMIT_S, Tab, tab
from support.leading.served_api import ServedApi, proxy, served


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_feed, "ROUND_S", 0.05)
    monkeypatch.setattr(event_feed, "POLL_S", 0.05)


async def note(db: Database, message: str, *objects: str) -> None:
    async with db.transaction() as connection:
        await write_events(connection, [NewEvent("scheduled", message, objects)])


async def test_objects_are_told_as_a_watch_tells_them(api: ServedApi, db: Database) -> None:
    uid = await add_deployment(db, "d")
    await add_deployment(db, "other")
    watch = api.session.get(f"{api.url}/api/v1/watch", headers=api.header())
    async with tab(api) as one, watch as stream:
        await one.open(1, "objects")
        await one.open(2, "objects", kinds=["deployments"], deployment="d")
        assert (await stream.content.readline()).startswith(b"event: snapshot")
        same = orjson.loads((await stream.content.readline()).removeprefix(b"data: "))
        firsts = {message["id"]: message for message in (await one.next(), await one.next())}
        assert firsts[1] == {"id": 1, **same}
        assert [d["name"] for d in firsts[2]["object"]["deployments"]] == ["d"]
        assert firsts[2]["object"].keys() == {"deployments"}
        async with db.transaction() as connection:
            await connection.execute("delete from revisions")
            await connection.execute("delete from deployments")
        api.changes.publish("*", None)
        gone = {"type": "gone", "object": {"kind": "Deployment", "name": "d", "uid": uid}}
        assert await one.of(2, "gone") == {"id": 2, **gone}
        await one.close(2)
        assert await one.of(2, "end") == {"id": 2, "type": "end", "reason": "closed"}
        await one.open(2, "objects", kinds="workers")  # the id is free again
        assert (await one.of(2, "snapshot"))["object"] == {"workers": []}


async def test_gpus_come_in_rounds_of_what_has_changed(api: ServedApi, db: Database) -> None:
    host = await add_host(db, "w", gpus=3)
    async with tab(api) as one:
        await one.open(7, "gpus")
        assert await one.next() == {
            "id": 7, "type": "gpus", "uuid": list(host.gpus), "utilization": [None] * 3, "used_mib": [None] * 3,
            "claimed_mib": [0] * 3,
        }  # fmt: skip
        async with db.transaction() as connection:
            await connection.execute(
                "insert into device_readings (device, used_mib, utilization, read_at) values ($1, 2048, 41.6, now())",
                host.gpus[1],
            )
        assert await one.next() == {
            "id": 7, "type": "round", "index": [1], "utilization": [42], "used_mib": [2048]
        }  # fmt: skip
        listed = {gpu["name"]: gpu["status"] for gpu in (await api.get("/api/v1/gpus"))["items"]}
        assert list(listed) == list(host.gpus)
        assert listed[host.gpus[1]]["used_mib"] == 2048


async def test_events_are_told_from_now_on_or_from_an_id(api: ServedApi, db: Database) -> None:
    uid = await add_deployment(db, "d")
    for number in range(3):
        await note(db, f"old {number}", f"deployment:{uid}")
    oldest = min(one["id"] for one in (await api.get("/api/v1/events"))["items"] if one["message"] == "old 0")
    async with tab(api) as one:
        await one.open(1, "events")
        assert await one.next() == {"id": 1, "type": "opened"}
        await one.open(2, "events", since=oldest, deployment="d")
        assert await one.next() == {"id": 2, "type": "opened"}
        assert [(await one.next())["event"]["message"] for _ in range(2)] == ["old 1", "old 2"]
        await note(db, "of a worker", "worker:w")
        assert (await one.next())["event"]["message"] == "of a worker"
        await note(db, "of d", f"deployment:{uid}")
        told = [await one.next(), await one.next()]
        assert sorted(message["id"] for message in told) == [1, 2]
        (listed,) = [e for e in (await api.get("/api/v1/events"))["items"] if e["message"] == "of d"]
        assert [message["event"] for message in told] == [listed, listed]


async def test_an_event_that_commits_late_is_told(api: ServedApi, db: Database) -> None:
    async with tab(api) as one:
        await one.open(1, "events")
        await one.next()
        async with db.transaction() as connection:
            await write_events(connection, [NewEvent("scheduled", "late", ("worker:w",))])
            await note(db, "early", "worker:w")
            assert (await one.next())["event"]["message"] == "early"
        assert (await one.next())["event"]["message"] == "late"


async def test_logs_are_followed_and_end(api: ServedApi, db: Database) -> None:
    go_on = asyncio.Event()

    async def agent(request: web.Request) -> web.StreamResponse:
        assert dict(request.query) == {"follow": "1", "tail": "5", "previous": "1"}
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write("one\n\N{EURO SIGN}".encode()[:-1])
        await go_on.wait()
        await response.write("\N{EURO SIGN}\n".encode()[-2:])
        return response

    async with proxy(agent) as address:
        host = await add_host(db, "w", gpus=1)
        async with db.transaction() as connection:
            await connection.execute("update workers set proxy_address = $1, proxy_secret = 's'", address)
        await add_instance(db, await add_deployment(db, "d"), "d-1", phase="running", epoch=1)
        await claim(db, f"host-{host.id}", "d-1", 0)
        await report(db, "d-1", "running")
        async with tab(api) as viewer:
            await viewer.open(4, "logs", instance="d-1")
            told = await viewer.next()
            _, body = await api.call("GET", "/api/v1/instances/d-1/logs", role="viewer")
            body["error"]["details"].pop("request_id")
            assert body["error"]["code"] == "forbidden"
            assert told == {"id": 4, "type": "error", **body}
        async with tab(api, "operator") as one:
            await one.open(4, "logs", instance="d-1", tail=5, previous=True)
            assert await one.next() == {"id": 4, "type": "opened"}
            assert await one.next() == {"id": 4, "type": "log", "text": "one\n"}
            go_on.set()
            assert await one.next() == {"id": 4, "type": "log", "text": "\N{EURO SIGN}\n"}
            assert await one.next() == {"id": 4, "type": "end", "reason": "finished"}


async def test_errors_are_those_of_the_routes(api: ServedApi, db: Database) -> None:
    await add_instance(db, await add_deployment(db, "d"), "d-1")
    async with tab(api, "admin") as one:
        for number, (topic, params, path) in enumerate((
            ("logs", {"instance": "none"}, "/api/v1/instances/none/logs"),
            ("logs", {"instance": "d-1"}, "/api/v1/instances/d-1/logs"),
            ("objects", {"kinds": "gpu"}, "/api/v1/watch?kinds=gpu"),
            ("objects", {"names": "x"}, "/api/v1/watch?names=x"),
            ("events", {"since": -1}, "/api/v1/events?since=-1"),
        )):  # fmt: skip
            await one.open(number, topic, **params)
            told = await one.next()
            _, body = await api.call("GET", path)
            body["error"]["details"].pop("request_id", None)
            assert told == {"id": number, "type": "error", **body}
        await one.open(1, "nothing")
        assert (await one.next())["error"]["details"]["problems"][0]["path"] == "topic"
        for text in ("", "[]", '{"op": "open"}', '{"op": "open", "id": 1, "more": 2}', '{"op": "fly", "id": 1}'):
            await one.socket.send_str(text)
            told = await one.next()
            assert (told["id"], told["error"]["code"]) == (None, "invalid"), text
        await one.socket.send_bytes(b"{}")
        assert (await one.next())["error"]["code"] == "invalid"
        await one.close(99)  # never opened: nothing comes of it
        await one.open(5, "objects")
        assert (await one.next())["type"] == "snapshot"
        await one.open(5, "objects")
        told = await one.next()
        assert (told["id"], told["error"]["code"]) == (None, "in_use")


async def test_a_ping_is_answered_under_its_number(api: ServedApi) -> None:
    async with tab(api) as one:
        await one.open(1, "events")
        await one.of(1, "opened")
        for number in (0, 1):  # whether a topic is open under it or not
            await one.socket.send_json({"op": "ping", "id": number})
            assert await one.next() == {"id": number, "type": "pong"}
        await one.open(1, "events")
        assert (await one.next())["error"]["code"] == "in_use"


async def test_open_and_close_without_reading_hold_little(api: ServedApi, db: Database) -> None:
    uid = await add_deployment(db, "d")
    async with db.transaction() as connection:  # what does not compress
        await connection.execute(
            """update deployments set message = (select string_agg(md5(random()::text), '')
                                                   from generate_series(1, 60000)) where uid = $1""", uid
        )  # fmt: skip
    held: list[int] = []
    full = asyncio.Event()
    put = Outbox._put

    async def noted(self: Outbox, *args: Any, **named: Any) -> None:
        await put(self, *args, **named)
        held.append(self._bytes)
        if self._bytes >= MAX_WAITING_BYTES:
            full.set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Outbox, "_put", noted)
        async with tab(api) as one:
            assert one.socket._response.connection is not None
            one.socket._response.connection.transport.pause_reading()
            for number in range(40):
                await one.open(number, "objects")
                await one.close(number)
                await one.open(100 + number, "objects")
            async with asyncio.timeout(LIMIT_S):
                await full.wait()
            await asyncio.sleep(0.5)  # more would come in now
            one.socket._response.connection.transport.abort()
    assert max(held) < MAX_WAITING_BYTES + 3 * 2**20


async def test_topics_sockets_and_messages_are_bounded(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MAX_TOPICS", 2)
    sockets = api.app[handler.SOCKETS]
    monkeypatch.setattr(sockets, "of_key", 1)
    monkeypatch.setattr(sockets, "total", 2)
    async with tab(api) as one:
        for number in range(2):
            await one.open(number, "objects")
            await one.of(number, "snapshot")
        await one.open(2, "objects")
        assert (await one.next())["error"]["code"] == "too_many_topics"
        for status, role in ((429, "viewer"), (503, "operator")):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with tab(api, "admin") if status == 503 else tab(api, role), tab(api, role):
                    pass
            assert refused.value.status == status
        await one.socket.send_str("x" * (handler.MAX_MESSAGE_BYTES + 1))
        assert await one.closed() in (aiohttp.WSCloseCode.MESSAGE_TOO_BIG, aiohttp.WSCloseCode.ABNORMAL_CLOSURE)
    async with asyncio.timeout(LIMIT_S):
        while True:  # its place is free again
            try:
                async with tab(api):
                    return
            except aiohttp.WSServerHandshakeError:
                await asyncio.sleep(0.05)


async def test_opens_beyond_their_rate_wait_and_are_all_answered(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "OPENS_AT_ONCE", 4)
    loop = asyncio.get_running_loop()
    async with tab(api) as one:
        for rounds in range(2):
            began_s = loop.time()
            for number in range(4 + 4 * rounds):
                await one.open(number, "unknown")
                assert (await one.next())["error"]["code"] == "invalid"
            took_s = loop.time() - began_s
        assert took_s >= 7 / handler.OPENS_PER_S, "even where nothing is opened"
        await one.socket.send_json({"op": "ping", "id": 3})
        assert (await one.next())["type"] == "pong"


async def test_a_socket_needs_a_key_that_may_read(api: ServedApi) -> None:
    for role, key, status in (("inference", None, 403), ("viewer", "gpw_wrong", 401)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with tab(api, role, key=key):
                pass
        assert refused.value.status == status
    status, body = await api.call("GET", "/api/v1/live", role="viewer")
    assert (status, body["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize("how", ["revoked", "role"])
async def test_a_socket_ends_with_its_key_or_its_role(api: ServedApi, db: Database, how: str) -> None:
    made = await create_key(db, "viewer")
    loop = asyncio.get_running_loop()
    async with tab(api, key=made.key) as one, tab(api) as other:
        for each in (one, other):
            await each.open(1, "objects")
            await each.of(1, "snapshot")
        began = loop.time()
        if how == "revoked":
            await revoke_key(db, made.id)
        else:
            async with db.transaction() as connection:
                await connection.execute("update api_keys set role = 'inference' where id = $1", made.id)
        api.changes.publish("key", made.id)
        assert await one.closed() == 4401
        assert loop.time() - began < 5.0
        await other.open(2, "objects")
        await other.of(2, "snapshot")


async def test_a_client_that_does_not_read_is_cut(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SLOW_CLIENT_S", 0.2)
    uid = await add_deployment(db, "d")
    sockets = api.app[handler.SOCKETS]
    async with tab(api) as one:
        await one.open(1, "objects")
        await one.of(1, "snapshot")
        assert one.socket._response.connection is not None
        one.socket._response.connection.transport.pause_reading()
        changes = 0
        async with asyncio.timeout(60):
            while len(sockets):
                changes += 1
                async with db.transaction() as connection:  # what does not compress
                    await connection.execute(
                        """update deployments set message = (select string_agg(md5(random()::text), '')
                                                               from generate_series(1, 30000)) where uid = $1""", uid
                    )  # fmt: skip
                api.changes.publish("status", uid)
                await asyncio.sleep(0.1)
    assert changes > 1


async def test_open_sockets_do_not_delay_the_shutdown(db: Database) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with served(db, shutdown_s=30.0) as api:
            socket = await session.ws_connect(f"{api.url}/api/v1/live", headers=api.header())
            await Tab(socket).open(1, "gpus")
            await Tab(socket).of(1, "gpus")
            closing = asyncio.create_task(Tab(socket).closed())
            began = loop.time()
        assert loop.time() - began < 10.0
        assert await closing in (aiohttp.WSCloseCode.GOING_AWAY, aiohttp.WSCloseCode.ABNORMAL_CLOSURE)
