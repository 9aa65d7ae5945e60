"""Controller, database and two agents on hosts of their own: the network is cut one way, heals, and is slow."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.network.cluster import CONTROLLER, DATABASE, ClusterOnHosts
from support.network.hosts import Hosts, missing
from support.processes.faults import RECOVERY_S, SHORT

AGENTS = ("a", "b")
LOST_AFTER_S = 14
SLOW_KBIT_PER_S, SLOW_S = 192, 15.0  # of each host; with less a lease may end while statements are sent anew
LACKS = missing()

pytestmark = [
    pytest.mark.cases,
    pytest.mark.timeout(400),
    pytest.mark.skipif(LACKS != "", reason=f"no network of namespaces: {LACKS}"),
]


@pytest.fixture
async def cluster(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[ClusterOnHosts]:
    dsn = await create_database(postgres)
    with Hosts(DATABASE, CONTROLLER, *AGENTS) as hosts:
        made = ClusterOnHosts(data_dir, hosts, dsn)
        await made.start_controller(**SHORT, GPUWARD_LOST_AFTER_S=str(LOST_AFTER_S))
        for name in AGENTS:
            await made.start_agent(name, gpus=2)
        await made.apply("steady", resources={"gpus": 1})
        await made.running("steady")
        try:
            yield made
        finally:
            await made.aclose()
    await drop_database(postgres, dsn)


async def where(cluster: ClusterOnHosts) -> tuple[str, str, psutil.Process]:
    """Which agent's host the deployment runs on, as which instance, in which process."""
    (instance,) = await cluster.instances("steady")
    return instance["status"]["worker"], instance["name"], cluster.engines()[instance["name"]]


async def answers(cluster: ClusterOnHosts) -> bool:
    body = {"model": "steady", "prompt": "hello", "max_tokens": 2}
    async with cluster.session.post("/v1/completions", json=body) as response:
        return response.status == 200


async def is_sound(cluster: ClusterOnHosts) -> None:
    """All is as it was wanted: one process, which answers, and no record that contradicts another."""

    async def one_process() -> bool:
        status, found = await cluster.call("GET", "/instances?limit=1000")
        if status == 503:  # a connection of the time of the cut, which is given up
            return False
        return len(cluster.engines()) == 1 and [i["status"]["phase"] for i in found["items"]] == ["running"]

    await cluster.until(one_process, "it runs once", RECOVERY_S)
    await cluster.until(lambda: answers(cluster), "it answers", RECOVERY_S)
    for name in AGENTS:
        await cluster.until(lambda name=name: cluster.worker_is(name, "ready"), f"{name} is ready", RECOVERY_S)
    await cluster.audit()
    for path in cluster.folder.glob("*.log"):
        assert "unexpectedly" not in path.read_text(errors="replace"), path


async def test_cuts_heal_and_slowness_passes(cluster: ClusterOnHosts) -> None:
    for to_controller in (True, False):
        await _short_cut(cluster, to_controller=to_controller)
        await _long_cut(cluster, to_controller=to_controller)
    for way in ((CONTROLLER, DATABASE), (DATABASE, CONTROLLER)):
        await _database_cut_off(cluster, way)
    await _slow(cluster)


async def _short_cut(cluster: ClusterOnHosts, *, to_controller: bool) -> None:
    """The worker is unreachable, and the engine stays."""
    agent, _, engine = await where(cluster)
    way = (agent, CONTROLLER) if to_controller else (CONTROLLER, agent)
    cluster.hosts.cut(*way)
    await cluster.until(lambda: cluster.worker_is(agent, "unreachable"), f"{agent} is unreachable", RECOVERY_S)
    cluster.hosts.heal(*way)
    await is_sound(cluster)
    assert (await where(cluster))[2] == engine


async def _long_cut(cluster: ClusterOnHosts, *, to_controller: bool) -> None:
    """The instance runs on the other host, and the old process ends once the way is open."""
    agent, _, engine = await where(cluster)
    (other,) = {*AGENTS} - {agent}
    way = (agent, CONTROLLER) if to_controller else (CONTROLLER, agent)
    cluster.hosts.cut(*way)

    async def moved() -> bool:
        on = {i["status"]["worker"] for i in await cluster.instances("steady") if i["status"]["phase"] == "running"}
        return on == {other}

    await cluster.until(moved, f"it runs on {other}", LOST_AFTER_S + RECOVERY_S)
    await cluster.until(lambda: answers(cluster), "it answers meanwhile", RECOVERY_S)
    cluster.hosts.heal(*way)
    await is_sound(cluster)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
    assert (await where(cluster))[0] == other


async def _database_cut_off(cluster: ClusterOnHosts, way: tuple[str, str]) -> None:
    """Models answer meanwhile, and the controller goes on by itself."""
    _, _, engine = await where(cluster)
    cluster.hosts.cut(*way)
    await cluster.until(lambda: _answers_readyz(cluster, 503), "the controller is not ready", RECOVERY_S)
    for _ in range(5):
        assert await answers(cluster)
        await asyncio.sleep(0.5)
    cluster.hosts.heal(*way)
    await cluster.until(lambda: _answers_readyz(cluster, 200), "the controller is ready", RECOVERY_S)
    await is_sound(cluster)
    assert (await where(cluster))[2] == engine
    await _runs_for_a_while(cluster)


async def _slow(cluster: ClusterOnHosts) -> None:
    """No worker is lost, and a deployment starts."""
    agent, _, engine = await where(cluster)
    for host in (agent, CONTROLLER):
        cluster.hosts.slow_down(host, SLOW_KBIT_PER_S)
    end = asyncio.get_running_loop().time() + SLOW_S
    while asyncio.get_running_loop().time() < end:
        assert await cluster.worker_is(agent, "ready")
        await asyncio.sleep(0.5)
    await _runs_for_a_while(cluster, workers=[agent])
    for host in (agent, CONTROLLER):
        cluster.hosts.speed_up(host)
    await is_sound(cluster)
    assert (await where(cluster))[2] == engine


async def _answers_readyz(cluster: ClusterOnHosts, expected: int) -> bool:
    async with cluster.session.get("/readyz") as response:
        return response.status == expected


async def _runs_for_a_while(cluster: ClusterOnHosts, **placement: object) -> None:
    spec = {"engine": "simulated", "resources": {"gpus": 1}, "placement": placement}
    await _taken(cluster, "PUT", "/deployments/other", spec)
    await cluster.running("other", RECOVERY_S)
    await _taken(cluster, "DELETE", "/deployments/other")

    async def gone() -> bool:
        status, found = await cluster.call("GET", "/instances?limit=1000")
        return status == 200 and all(one["spec"]["deployment"] != "other" for one in found["items"])

    await cluster.until(gone, "the other is gone", RECOVERY_S)


async def _taken(cluster: ClusterOnHosts, method: str, path: str, body: object = None) -> None:
    """Sends it until it is taken. Connections of the time of a cut, which are given up, cost an answer each."""

    async def sent() -> bool:
        status, answer = await cluster.call(method, path, body)
        assert status in (200, 201, 202, 204, 503) or (method == "DELETE" and status == 404), answer
        return status != 503

    await cluster.until(sent, f"{method} {path} is taken", RECOVERY_S)
