"""Rollouts on real processes that lose a worker, or their leader, on the way: their bounds hold, and they end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.cluster import Cluster, Json
from support.processes.controllers import Controllers
from support.processes.faults import SHORT
from support.processes.sleeping import ask
from support.standins.load_balancer import LoadBalancer

pytestmark = pytest.mark.timeout(300)
REPLICAS, SURGE = 4, 1
LOST_S = "10"
ROLLING: Json = {
    "replicas": REPLICAS, "update": "rolling", "resources": {"gpus": 1}, "drain_time": "5s",
    "rollout": {"surge": SURGE, "unavailable": 0, "ready_for": "1s"}, "args": {"load_seconds": 1},
}  # fmt: skip


async def change(cluster: Cluster, version: int) -> None:
    await cluster.apply("chat", **ROLLING, env={"VERSION": str(version)})


async def rolled_out(cluster: Cluster, revision: int) -> bool:
    """Whether all replicas are of that revision, and nothing else is left."""
    found = (await cluster.get("/deployments/chat"))["status"]["rollout"]
    there = [(one["status"]["phase"], one["spec"]["revision"]) for one in await cluster.instances("chat")]
    return (found and found["state"], there) == ("complete", [("running", revision)] * REPLICAS)


async def midway(cluster: Cluster) -> bool:
    running = [one for one in await cluster.instances("chat") if one["status"]["phase"] == "running"]
    return {one["spec"]["revision"] for one in running} == {1, 2}


@dataclass
class Watch:
    """What is seen of the instances, and of requests, while it lasts. `lost`: a worker that does not count."""

    cluster: Cluster
    url: str = ""
    lost: str = ""
    running: list[int] = field(default_factory=list)
    all_there: list[int] = field(default_factory=list)
    answers: dict[Any, int] = field(default_factory=dict)
    _over: bool = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._look()), asyncio.create_task(self._ask())]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _look(self) -> None:
        while not self._over:
            try:
                seen = await self.cluster.instances("chat")
            except (AssertionError, aiohttp.ClientError, TimeoutError):  # the controller that was asked is gone
                await asyncio.sleep(0.2)
                continue
            there = [one for one in seen if self.lost not in one["status"]["workers"]]
            self.running.append([one["status"]["phase"] for one in there].count("running"))
            self.all_there.append(len(there))
            await asyncio.sleep(0.1)

    async def _ask(self) -> None:
        while not self._over:
            status, answer = await ask(self.cluster, self.url)
            told = status if status == 200 else (status, str(answer))
            self.answers[told] = self.answers.get(told, 0) + 1
            await asyncio.sleep(0.05)


@pytest.mark.nightly
async def test_g53_a_worker_that_is_lost_in_mid_rollout_costs_no_other_replica(cluster: Cluster) -> None:
    """Its replicas are missing, so no old one goes until others have taken their place."""
    await cluster.start_controller(**SHORT, GPUWARD_LOST_AFTER_S=LOST_S)
    for name in ("a", "b", "c", "d"):
        await cluster.start_agent(name, gpus=3 if name in "ab" else 2)
    for name in ("c", "d"):  # so that one silent worker of four does not open the breaker
        await cluster.post(f"/workers/{name}/cordon")
    await change(cluster, 1)
    await cluster.until(lambda: rolled_out(cluster, 1), "the first revision runs", 60)
    await cluster.post("/workers/c/uncordon")
    async with Watch(cluster) as watch:
        await change(cluster, 2)
        await cluster.until(lambda: midway(cluster), "both revisions run", 40)
        seen = await cluster.instances("chat")
        on = {name: [one for one in seen if name in one["status"]["workers"]] for name in "abc"}
        victim = max("ab", key=lambda name: len(on[name]))
        missing = sum(one["status"]["phase"] == "running" for one in on[victim])
        assert 0 < missing < REPLICAS
        watch.lost = victim
        watch.running.clear()
        watch.all_there.clear()
        cluster.kill(victim)
        for name, process in cluster.engines().items():
            if name in {one["name"] for one in on[victim]}:
                process.kill()

        async def done() -> bool:
            there = [one for one in await cluster.instances("chat") if victim not in one["status"]["workers"]]
            return [(one["status"]["phase"], one["spec"]["revision"]) for one in there] == [("running", 2)] * REPLICAS

        await cluster.until(done, "all replicas are of the new revision", 120)

    async def complete() -> bool:
        found = (await cluster.get("/deployments/chat"))["status"]["rollout"]
        return (found["state"], found["revision"]) == ("complete", 2)

    await cluster.until(complete, "the rollout is complete though the worker stays away", 15)
    assert min(watch.running) >= REPLICAS - missing, "the rollout took none away beside those that were lost"
    assert max(watch.all_there) <= REPLICAS + SURGE
    refused = {told for told in watch.answers if told != 200}
    assert refused <= {(502, "engine_died")}, "what ran at the lost worker, and nothing else"
    assert watch.answers[200] > 50
    await cluster.audit()


@pytest.fixture
async def pair(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[Controllers]:
    """Two controllers on one database, of which `a` leads, and an agent that reaches b."""
    dsn = await create_database(postgres)
    cluster = Controllers(data_dir, dsn)
    door = None
    try:
        await cluster.start_named("a", **SHORT)
        await cluster.until(lambda: cluster.leads("a"), "a leads")
        await cluster.start_named("b", **SHORT)
        door = await LoadBalancer(cluster.port_of("b")).open()
        await cluster.start_agent("host", gpus=8, url=door.url)
        yield cluster
    finally:
        await cluster.aclose()
        if door is not None:
            await door.close()
        await drop_database(postgres, dsn)


@pytest.mark.cases
async def test_g53_a_leader_that_is_killed_in_mid_rollout_is_followed_by_one_that_keeps_the_bounds(
    pair: Controllers,
) -> None:
    await change(pair, 1)
    await pair.until(lambda: rolled_out(pair, 1), "the first revision runs", 60)
    url = f"http://127.0.0.1:{pair.port_of('b')}"
    async with Watch(pair, url) as watch:
        await change(pair, 2)
        await pair.until(lambda: midway(pair), "both revisions run", 40)
        pair.kill_named("a")
        await pair.until(lambda: pair.leads("b"), "b leads", 40)
        await pair.until(lambda: rolled_out(pair, 2), "the rollout is complete", 90)
    assert set(watch.answers) == {200}, watch.answers
    assert min(watch.running) >= REPLICAS
    assert max(watch.all_there) <= REPLICAS + SURGE
    assert {one["status"]["epoch"] for one in await pair.instances("chat")} == {1}, "each started once"
    await pair.audit()
