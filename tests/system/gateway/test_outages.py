"""The database and the controllers are away: what gateways know goes on being served."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.serving import SOCKET_NAME
from support.database.gate import DatabaseGate, gate_to
from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.cluster import Cluster
from support.processes.controllers import Controllers
from support.processes.faults import SHORT
from support.processes.gateways import CHAT, Another, asked, embedded_dsn, with_a_model

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]

AWAY_S = 12.0  # longer than shares of limits, routes and keys stay fresh
SLACK_S = 1.5  # beside the second for which a request may wait for the database


async def ask(url: str, key: str, path: str = CHAT) -> tuple[int, str, float]:
    """Status, code of the error, and seconds of one request over a connection of its own."""
    began = time.monotonic()
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.post(url + path, json=asked("tokens=1")) as answer,
    ):
        body = await answer.json()
        code = "" if answer.status == 200 else body["error"]["code"]
        return answer.status, code, time.monotonic() - began


@pytest.mark.parametrize("how", ["closed", "frozen"])
async def test_g19_the_database_is_away(cluster: Cluster, how: str) -> None:
    await with_a_model(cluster)
    never_used = (await cluster.post("/keys", {"role": "inference"}))["key"]
    limited = (await cluster.post("/keys", {"role": "inference", "rpm": 6}))["key"]
    async with gate_to(embedded_dsn(cluster)) as gate:
        other = Another(cluster, gate.dsn)
        await cluster.until(other.is_ready, "the other gateway is ready", 60)
        assert (await ask(other.url, limited))[0] == 200
        if how == "closed":
            await gate.close()
        else:
            gate.freeze()
        # Made meanwhile: it cannot be known here.
        unknown = (await cluster.post("/keys", {"role": "inference"}))["key"]
        began, limits = time.monotonic(), []
        slow = 0  # answers
        while time.monotonic() - began < AWAY_S:
            status, code, took_s = await ask(other.url, never_used)
            assert (status, code) == (200, ""), time.monotonic() - began
            slow += took_s > SLACK_S
            status, code, took_s = await ask(other.url, unknown)
            assert (status, code) == (503, "unavailable")
            slow += took_s > 1.0 + SLACK_S
            status, code, took_s = await ask(other.url, limited)
            assert (status, code) in {(200, ""), (429, "rate_limited")}
            slow += took_s > 1.0 + SLACK_S
            limits.append(status)
            await asyncio.sleep(0.2)
        assert slow <= 2, "those that met a loaded machine"
        assert limits.count(429) > limits.count(200), "its limit goes on"
        assert 1 <= limits.count(200) <= 6, "with what this gateway has of it"
        await gate.open()

        async def known() -> bool:
            return (await ask(other.url, unknown))[0] == 200

        await cluster.until(known, "what was made meanwhile is known again")


class Site:
    """Controllers a and b, of which a leads, and a gateway before b whose way to the database is a gate."""

    def __init__(self, cluster: Controllers, gate: DatabaseGate) -> None:
        self.cluster, self.gate = cluster, gate
        self.url = ""

    async def begin(self) -> None:
        await self.cluster.start_named("a", **SHORT)
        await self.cluster.until(lambda: self.cluster.leads("a"), "a leads")
        await self.cluster.start_named("b", **SHORT)
        api = str(self.cluster.folder / "b" / SOCKET_NAME)
        self.cluster.start("gateway", "gateway", "--controller", api, "--port", "0", GPUWARD_DATABASE_URL=self.gate.dsn)
        await self.cluster.until(self._serves, "the gateway serves", 60)
        await self.cluster.start_agent("gpu-1", url=self.url)
        await self.cluster.apply("m", resources={"gpus": 1})
        await self.cluster.running("m")

    async def _serves(self) -> bool:
        log = (self.cluster.folder / "gateway.log").read_text()
        if "gateway serving" not in log:
            return False
        self.url = "http://127.0.0.1:" + log.partition("port=")[2].split()[0]
        async with self.cluster.session.get(self.url + "/readyz") as answer:
            return answer.status == 200


@pytest.fixture
async def site(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[Site]:
    dsn = await create_database(postgres)
    cluster = Controllers(data_dir, dsn)
    async with gate_to(dsn) as gate:
        yield Site(cluster, gate)
        await gate.open()
        await cluster.aclose()
    await drop_database(postgres, dsn)


async def test_g19_the_leader_is_killed_then_the_database_fails_over(site: Site) -> None:
    await site.begin()
    key = (await site.cluster.post("/keys", {"role": "inference"}))["key"]
    await site.cluster.until(lambda: _answered(site.url, key), "the key is known")
    failed: list[tuple[int, str, float]] = []
    served = 0
    over = asyncio.Event()

    async def client() -> None:
        nonlocal served
        while not over.is_set():
            found = await ask(site.url, key)
            served += 1
            if found[0] != 200:
                failed.append(found)
            await asyncio.sleep(0.02)

    clients = [asyncio.create_task(client()) for _ in range(3)]
    try:
        await asyncio.sleep(1.0)
        site.cluster.kill_named("a")
        await asyncio.sleep(1.0)
        await site.gate.close()
        await asyncio.sleep(4.0)
        await site.gate.open()
        site.cluster.through("b")
        await site.cluster.until(lambda: site.cluster.leads("b"), "b leads", 60)
        await asyncio.sleep(2.0)
    finally:
        over.set()
        await asyncio.gather(*clients)
    assert failed == []
    assert served > 50
    await site.cluster.until(lambda: site.cluster.worker_is("gpu-1", "ready"), "the agent is ready", 30)


async def _answered(url: str, key: str) -> bool:
    return (await ask(url, key))[0] == 200
