"""Watch: a snapshot, then coalesced changes and removals; slow clients are cut."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from controller.api import streams
from controller.api.resources import watch
from controller.live.object_feed import COALESCE_S
from controller.store.core.database import Database
from controller.store.deployments.verbs import scale
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import add_deployment, add_host, add_instance
from support.leading.served_api import ServedApi, served

LIMIT_S = 20.0


@asynccontextmanager
async def watching(api: ServedApi) -> AsyncIterator[aiohttp.StreamReader]:
    async with api.session.get(f"{api.url}/api/v1/watch", headers=api.header("viewer")) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        yield answer.content


async def frame(stream: aiohttp.StreamReader) -> dict[str, Any]:
    """The next event; heartbeats are skipped."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            line = await stream.readline()
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))
            assert line, "the stream has ended"


async def test_a_snapshot_is_followed_by_changes(api: ServedApi, db: Database) -> None:
    host = await add_host(db, "w", gpus=1)
    uid = await add_deployment(db, "d")
    await add_instance(db, uid, "d-1")
    async with watching(api) as stream:
        first = await frame(stream)
        assert first["type"] == "snapshot"
        assert {kind: [one["name"] for one in found] for kind, found in first["object"].items()} == {
            "deployments": ["d"], "instances": ["d-1"], "workers": ["w"],
        }  # fmt: skip
        api.changes.publish("status", uid)  # nothing has changed, so nothing is sent
        await apply_spec(db, "d", DeploymentSpec(engine="simulated", replicas=2))
        api.changes.publish("deployment", uid)
        event = await frame(stream)
        assert (event["type"], event["object"]["kind"], event["object"]["spec"]["replicas"]) == (
            "changed",
            "Deployment",
            2,
        )
        async with db.transaction() as connection:
            await connection.execute("delete from instances")
        api.changes.publish("status", uid)
        assert await frame(stream) == {
            "type": "gone", "object": {"kind": "Instance", "name": "d-1", "uid": "d-1"}
        }  # fmt: skip
        async with db.transaction() as connection:
            await connection.execute("update workers set cordoned = true")
        api.changes.publish("worker", host.id)
        assert (await frame(stream))["object"]["status"]["state"] == "cordoned"
        new = await add_deployment(db, "e")
        api.changes.publish("*", None)
        assert (await frame(stream))["object"]["uid"] == new


async def test_many_notifications_share_a_read(api: ServedApi, db: Database) -> None:
    uid = await add_deployment(db, "d")
    async with watching(api) as stream:
        await frame(stream)
        for n in range(200):
            await scale(db, "d", n + 2, n + 2)
            api.changes.publish("deployment", uid)
        frames = [await frame(stream)]
        while frames[-1]["object"]["spec"]["replicas"] != 201:
            frames.append(await frame(stream))
    assert len(frames) < 100


async def test_a_quiet_stream_sends_heartbeats(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HEARTBEAT_S", 0.02)
    async with watching(api) as stream, asyncio.timeout(LIMIT_S):
        await frame(stream)
        while not (await stream.readline()).startswith(b":"):
            pass


async def test_a_client_that_does_not_read_is_cut(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SLOW_CLIENT_S", 0.2)
    uid = await add_deployment(db, "d")
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    request = f"GET /api/v1/watch HTTP/1.1\r\nHost: x\r\nAuthorization: {api.header()['Authorization']}\r\n\r\n"
    writer.write(request.encode())
    try:
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")  # and not a byte more
            changes = 0
            assert len(api.app[watch.WATCHES]) == 1
            while len(api.app[watch.WATCHES]):
                changes += 1
                async with db.transaction() as connection:
                    query = "update deployments set message = $1 || repeat('x', 1000000) where uid = $2::text::uuid"
                    await connection.execute(query, str(changes), uid)
                api.changes.publish("status", uid)
                await asyncio.sleep(COALESCE_S)
    finally:
        writer.transport.abort()
    assert changes > 1


async def test_open_watches_do_not_delay_the_shutdown(db: Database) -> None:
    loop = asyncio.get_running_loop()
    async with served(db, shutdown_s=30.0) as api:
        session = aiohttp.ClientSession()
        answer = await session.get(f"{api.url}/api/v1/watch", headers=api.header())
        await frame(answer.content)
        began = loop.time()
    assert loop.time() - began < 10.0
    await session.close()
