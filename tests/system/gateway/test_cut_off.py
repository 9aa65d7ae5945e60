"""A gateway that alone cannot reach the database, beside others that can. On real processes."""

import asyncio
from typing import Any

import aiohttp
import pytest

from support.database.gate import gate_to
from support.processes.cluster import Cluster
from support.processes.gateways import Another, embedded_dsn, with_a_model
from support.processes.sleeping import CHAT, body, gauge

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(200)]
LENGTH = 4
EXPIRED_S = 11.0


class Askers:
    """Requests that wait, or are refused, at a gateway."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.tasks: list[asyncio.Task[tuple[int, Any]]] = []

    def ask(self, url: str, number: int, told: str = "tokens=1") -> list[asyncio.Task[tuple[int, Any]]]:
        new = [asyncio.create_task(self._one(url, body(told))) for _ in range(number)]
        self.tasks += new
        return new

    async def _one(self, url: str, sent: Any) -> tuple[int, Any]:
        headers = self._cluster.session.headers
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url + CHAT, json=sent) as answer:
            return answer.status, (await answer.json())["error"]["code"]

    def close(self) -> None:
        for one in self.tasks:
            one.cancel()


async def test_g24_one_that_is_cut_off_alone_lets_none_wait_beside_what_the_others_have(cluster: Cluster) -> None:
    """It knows by the controller that the others go on."""
    await with_a_model(cluster)
    serving = {"max_in_flight": 1, "queue": {"length": LENGTH, "wait": "90s"}}
    await cluster.apply("chat", resources={"gpus": 1}, serving=serving)
    await cluster.running("chat")
    async with gate_to(embedded_dsn(cluster)) as gate:
        other, askers = Another(cluster, gate.dsn), Askers(cluster)

        async def waiting(url: str) -> float:
            return await gauge(cluster, "gpuward_gateway_requests_waiting", url, deployment="chat")

        async def waits(url: str, number: int) -> None:
            async def so_many() -> bool:
                return await waiting(url) == number

            await cluster.until(so_many, f"{number} wait")

        async def runs(url: str) -> bool:
            return await gauge(cluster, "gpuward_gateway_requests_in_flight", url, deployment="chat") == 1

        await cluster.until(other.is_ready, "the other gateway serves")
        for url in (other.url, cluster.url):
            askers.ask(url, 1, "tokens=1 wait=100")
            await cluster.until(lambda url=url: runs(url), "the replica is at its limit there")
        askers.ask(other.url, 1)
        await waits(other.url, 1)
        await asyncio.sleep(1.5)  # it has its place
        gate.freeze()
        refused = askers.ask(other.url, 2)
        await cluster.until(lambda: all(one.done() for one in refused), "those that come are refused", 10)
        assert [one.result() for one in refused] == [(503, "queue_full")] * 2
        await asyncio.sleep(EXPIRED_S)
        askers.ask(cluster.url, LENGTH)
        await waits(cluster.url, LENGTH)
        late = askers.ask(other.url, LENGTH)
        await cluster.until(lambda: all(one.done() for one in late), "these are refused too", 10)
        assert {one.result() for one in late} == {(503, "queue_full")}
        assert await waiting(other.url) == 1, "what it had waits on"

        await gate.open()

        async def none_waits_beside() -> bool:
            """Since the others have all places, once it knows of them again."""
            (one,) = askers.ask(other.url, 1)
            await asyncio.wait([one], timeout=5)
            assert one.done()
            return one.result() == (503, "queue_full")

        assert await none_waits_beside()
        askers.close()
        await waits(cluster.url, 0)
        await waits(other.url, 0)
        await cluster.until(lambda: _lets_wait(askers, other.url), "it has places again", 30)
        askers.close()


async def _lets_wait(askers: Askers, url: str) -> bool:
    askers.ask(url, 1, "tokens=1 wait=100")
    (one,) = askers.ask(url, 1)
    await asyncio.wait([one], timeout=2)
    return not one.done()
