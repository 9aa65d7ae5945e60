"""A model that is asked to wake wakes, whatever becomes of the leader; and after a utilization policy's sleep."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.cluster import Cluster
from support.processes.controllers import Controllers
from support.processes.faults import SHORT
from support.processes.policies import IDLE_POLICY, SAMPLING
from support.processes.sleeping import SLEEPY, ask, asleep, begin, epochs, events
from support.standins.load_balancer import LoadBalancer

pytestmark = [pytest.mark.cases, pytest.mark.timeout(240)]
HOST = "on-both"


@pytest.fixture
async def pair(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[Controllers]:
    """Two controllers on one database, of which `a` leads, and an agent that reaches either."""
    dsn = await create_database(postgres)
    cluster = Controllers(data_dir, dsn)
    door = None
    try:
        await cluster.start_named("a", **SHORT)
        await cluster.until(lambda: cluster.leads("a"), "a leads")
        await cluster.start_named("b", **SHORT)
        door = await LoadBalancer(cluster.port_of("b")).open()
        await cluster.start_agent(HOST, url=door.url)
        yield cluster
    finally:
        await cluster.aclose()
        if door is not None:
            await door.close()
        await drop_database(postgres, dsn)


async def test_g27_a_wake_outlives_the_leader_that_saw_it(pair: Controllers) -> None:
    """Requests wait at b's gateway. The leader is killed once it has woken the model: the next one goes on with it."""
    await pair.apply("chat", **SLEEPY, args={"load_seconds": 4})
    await asleep(pair)
    url = f"http://127.0.0.1:{pair.port_of('b')}"
    waiting = [asyncio.create_task(ask(pair, url)) for _ in range(5)]
    await pair.until(lambda: pair.instances("chat"), "it wakes")
    pair.kill_named("a")
    assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
    assert await epochs(pair) == [1], "started once"
    assert len(await events(pair, "woken")) == 1


async def test_g27_a_wake_that_no_leader_has_seen_is_seen_by_the_next_one(pair: Controllers) -> None:
    """The leader stands still when the requests come, and is then killed."""
    await pair.apply("chat", **SLEEPY)
    await asleep(pair)
    process = psutil.Process(pair.pid_of("a"))
    process.suspend()
    url = f"http://127.0.0.1:{pair.port_of('b')}"
    waiting = [asyncio.create_task(ask(pair, url)) for _ in range(5)]
    await asyncio.sleep(1)
    assert await pair.instances("chat") == []
    process.resume()
    pair.kill_named("a")
    assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
    assert await epochs(pair) == [1]


async def test_g35_a_policys_stop_of_a_model_that_may_sleep_is_a_sleep_that_a_request_ends(cluster: Cluster) -> None:
    """Its window is full of idleness though requests keep coming to it, so that `idle_after` is never over."""
    policy = {**IDLE_POLICY, "ignore_requests": True}
    await begin(cluster, env=SAMPLING, scaling={"idle_after": "1h"}, utilization_policy=policy)
    assert (await ask(cluster))[0] == 200
    await asleep(cluster, 90)
    status = (await cluster.get("/deployments/chat"))["status"]
    assert status["reason"] == "policy_idle"
    assert (await ask(cluster))[0] == 200, "a request ends it"
    status = (await cluster.get("/deployments/chat"))["status"]
    assert status["phase"] == "running"
    assert [one["source"] for one in status["intents"]] == ["autoscaler"]
    await cluster.audit()
