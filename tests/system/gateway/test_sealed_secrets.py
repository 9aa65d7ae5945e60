"""A rolling upgrade to sealed secrets: a gateway of the version before serves on, and then all read what is sealed."""

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from support.processes.cluster import Cluster
from support.processes.earlier_versions import unpack
from support.processes.gateways import CHAT, Another, asked, embedded_dsn, with_a_model
from support.processes.hostile import meanwhile

pytestmark = [pytest.mark.cases, pytest.mark.timeout(240)]
BEFORE = "3d855002"  # the version before sealed secrets
PLAIN = "select count(*) from workers where proxy_secret is not null"
LONG_ENOUGH_S = 30.0  # for the leader to seal what may be sealed
SETTLED_S = 11.0  # until a new gateway counts


async def test_no_request_is_refused_while_a_gateway_of_the_version_before_runs(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = unpack(BEFORE, tmp_path)
    await with_a_model(cluster)
    cluster.run_code("cli", before)
    old = Another(cluster, name="old")
    cluster.run_code()
    await cluster.until(old.is_ready, "the gateway of the version before is ready")
    database, ended = await asyncpg.connect(embedded_dsn(cluster)), list[object]()

    async def ask(url: str) -> None:
        while True:
            async with cluster.session.post(url + CHAT, json=asked("tokens=2")) as answer:
                ended.append((answer.status, await answer.text()) if answer.status != 200 else 200)
            await asyncio.sleep(0.05)

    async def waits_for() -> list[str]:
        items = (await cluster.get("/attention"))["items"]
        return [one["message"] for one in items if one["code"] == "gateway_without_key"]

    async def is_sealed() -> bool:
        sealed = await database.fetchval("select receipt_key is null from lease")
        return bool(sealed) and await database.fetchval(PLAIN) == 0

    try:
        async with meanwhile(asyncio.create_task(ask(cluster.url)), asyncio.create_task(ask(old.url))):
            await asyncio.sleep(LONG_ENOUGH_S)
            (message,) = await waits_for()
            assert f":{old.port}" in message
            assert await database.fetchval(PLAIN) == 1
        async with meanwhile(asyncio.create_task(ask(cluster.url))):
            cluster.signal("old", signal.SIGTERM)
            assert await asyncio.to_thread(cluster.processes.pop("old").wait, 20) == 0
            await cluster.until(is_sealed, "both are sealed", 60)
            new = Another(cluster, name="new")
            await cluster.until(new.is_ready, "a gateway that starts later finds the key by itself")
            async with cluster.session.post(new.url + CHAT, json=asked("tokens=2")) as answer:
                assert answer.status == 200, await answer.text()
            await asyncio.sleep(SETTLED_S)
            assert (await cluster.call("POST", "/secrets/rotate-key"))[0] == 200
            keys = (cluster.data_dir / "secrets.key").read_text().split()
            assert len(keys) == 1, "nothing is sealed under the earlier key any more"
            seen = len(ended)
            await cluster.until(lambda: len(ended) > seen + 20, "requests go on")
        assert (await waits_for()) == []
    finally:
        await database.close()
    assert set(ended) == {200}
    assert (cluster.data_dir / "proxy.key").stat().st_mode & 0o777 == 0o600
