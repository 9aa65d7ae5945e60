"""Two real agents with one identity: neither is believed, and engines of neither are stopped (faults.md 19)."""

import asyncio
import shutil

import psutil
import pytest

from support.processes.cluster import Cluster

pytestmark = pytest.mark.cases
CLONED = "gpu-1-clone"


def clone(cluster: Cluster) -> None:
    """Starts a second agent on a copy of the first one's data folder. It has another port, as another host would."""
    folder = cluster.folder / f"agent-{CLONED}"
    shutil.copytree(cluster.folder / "agent-gpu-1", folder, ignore=shutil.ignore_patterns("*.lock", "*.sock"))
    hosts = cluster.folder / "gpu-1.yaml"
    argv = ("--controller", cluster.url, "--name", "gpu-1", "--simulate", str(hosts), "--data-dir", str(folder))
    cluster.start(CLONED, "agent", *argv)


async def test_two_agents_with_one_identity(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    await cluster.apply("model", resources={"gpus": 1})
    await cluster.running("model")
    (engine,) = cluster.engines().values()
    began = engine.create_time()
    clone(cluster)

    async def quarantined() -> bool:
        worker = await cluster.get("/workers/gpu-1")
        return bool(worker["status"]["reason"] == "two_identities")

    await cluster.until(quarantined, "the worker is quarantined", 60)
    (event,) = (await cluster.get("/events?reason=worker_quarantined"))["items"]
    ports = {cluster.proxy_port(name) for name in ("gpu-1", CLONED)}
    assert len(ports) == 2
    for port in ports:
        assert f"127.0.0.1 (proxy port {port})" in event["message"], event
    log = (cluster.folder / "controller.log").read_text()
    await asyncio.sleep(5)
    later = (cluster.folder / "controller.log").read_text()[len(log) :]
    assert len(later.splitlines()) < 60, "two agents that take turns do not fill the log"
    assert (psutil.Process(engine.pid).create_time(), engine.is_running()) == (began, True)
    for name in ("gpu-1", CLONED):
        assert cluster.processes[name].poll() is None
    (instance,) = await cluster.instances("model")
    assert instance["status"]["epoch"] == 1
    cluster.kill(CLONED)
    assert (psutil.Process(engine.pid).create_time(), engine.is_running()) == (began, True)
    await cluster.audit()
