"""An upgrade over running engines: what the version before wrote and started is adopted, and nothing is restarted.

The version before is the last commit whose packages lay in src/gpuward. It writes the database and the agent's folder,
and its agent starts the engines. Git holds its code, so a source archive without history skips these tests.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from controller.store.embedded.layout import Layout
from support.processes.cluster import STOP_S, Cluster
from support.processes.earlier_versions import unpack

BEFORE = "ce8d02c"
HOST = "gpu-1"
RUNNING = ("alone", "shared", "crashed")
INSTANCES = 4
COMMANDS = "select id, instance_id, epoch, verb, state from commands order by id"
SHORT = {"GPUWARD_UNREACHABLE_AFTER_S": "15", "GPUWARD_LOST_AFTER_S": "60"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the packages of the version before."""
    return unpack(BEFORE, tmp_path_factory.mktemp("before"))


# Of a claim, what the version before tells, too.
CLAIM = ("device", "worker", "memory_mib", "exclusive", "epoch", "rank", "kind")


@dataclass(frozen=True)
class Picture:
    """Everything that an upgrade must leave as it is."""

    pids: dict[str, int]
    epochs: dict[str, int]
    restarts: dict[str, int]
    claims: dict[str, Any]


async def _picture(cluster: Cluster, names: tuple[str, ...]) -> Picture:
    found = [i for name in names for i in await cluster.instances(name)]
    engines = cluster.engines()
    return Picture(
        pids={i["name"]: engines[i["name"]].pid for i in found},
        epochs={i["name"]: i["status"]["epoch"] for i in found},
        restarts={i["name"]: i["status"]["restarts"] for i in found},
        claims={i["name"]: [{field: c[field] for field in CLAIM} for c in i["status"]["claims"]] for i in found},
    )


async def _commands(cluster: Cluster) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(Layout(cluster.data_dir).url("postgresql"), timeout=10, command_timeout=10)
    try:
        return [tuple(row) for row in await connection.fetch(COMMANDS)]
    finally:
        connection.terminate()


async def _begin(cluster: Cluster, source: Path) -> Picture:
    """The version before leads, and its engines run: whole GPUs, two that share one, and one that crashed once."""
    cluster.run_code("gpuward.cli", source)
    await cluster.start_controller(**SHORT)
    await cluster.start_agent(HOST, gpus=4, GPUWARD_AGENT_ON_EXIT="keep")
    await cluster.apply("alone", args={"memory": "4GiB"}, resources={"gpus": 2, "exclusive": True})
    await cluster.apply("shared", args={"memory": "4GiB"}, replicas=2, resources={"gpus": 1, "gpu_memory": "8GiB"})
    await cluster.apply("crashed", args={"memory": "4GiB"}, resources={"gpus": 1})
    for name in RUNNING:
        await cluster.running(name)
    (instance,) = await cluster.instances("crashed")
    cluster.engines()[instance["name"]].kill()
    await cluster.until(lambda: _restarted(cluster), "the crashed engine runs again", 40)
    await cluster.running("crashed")
    picture = await _picture(cluster, RUNNING)
    assert len(picture.pids) == INSTANCES
    return picture


async def _restarted(cluster: Cluster) -> bool:
    (instance,) = await cluster.instances("crashed")
    return instance["status"]["phase"] == "running" and instance["status"]["epoch"] > 1


async def _upgrade(cluster: Cluster) -> None:
    """Both daemons start again, as the version of today."""
    cluster.run_code()
    await cluster.start_controller(**SHORT)
    await cluster.start_agent(HOST, gpus=4)


async def _adopted(cluster: Cluster, before: Picture, commands: list[tuple[Any, ...]]) -> None:
    for name in RUNNING:
        await cluster.running(name)
    assert await _picture(cluster, RUNNING) == before
    assert [c for c in await _commands(cluster) if c[1] in before.pids] == [c for c in commands if c[1] in before.pids]
    _audit_is_clean(cluster)


def _audit_is_clean(cluster: Cluster) -> None:
    settings = dict(line.split("=", 1) for line in (cluster.data_dir / "client.env").read_text().splitlines())
    line = [sys.executable, "-P", "-m", "cli", "audit"]
    done = subprocess.run(line, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def _stopped(cluster: Cluster, *names: str) -> None:
    """The agent of today stops the engines that the agent before it started."""
    for name in names:
        await cluster.delete(name)
    for name in names:
        await cluster.gone(name)
    assert not cluster.engines()
    _audit_is_clean(cluster)


@pytest.mark.cases
async def test_after_kills_all_is_adopted_and_an_open_start_is_carried_out(cluster: Cluster, source: Path) -> None:
    before = await _begin(cluster, source)
    cluster.signal(HOST, signal.SIGSTOP)  # still ready for some seconds, but it takes no command
    await cluster.apply("open", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.until(lambda: _phases(cluster, "open", ["scheduled"]), "it is placed and its start is written")
    cluster.kill(HOST)
    commands = await _commands(cluster)
    (start,) = [c for c in commands if c[-1] == "open"]
    cluster.kill("controller")

    await _upgrade(cluster)
    await cluster.running("open")
    await _adopted(cluster, before, commands)
    (opened,) = await cluster.instances("open")
    assert opened["status"]["epoch"] == 1
    assert [c[:-1] for c in await _commands(cluster) if c[1] == opened["name"]] == [start[:-1]]
    assert "agent.simulated_engine" in cluster.engines()[opened["name"]].cmdline()
    await _stopped(cluster, *RUNNING, "open")


async def _phases(cluster: Cluster, name: str, phases: list[str]) -> bool:
    return await cluster.phases(name) == phases


@pytest.mark.timeout(300)  # daemons of two versions: a minute of work on a free machine
@pytest.mark.cases
async def test_after_clean_ends_all_is_adopted_and_a_pending_one_is_started(cluster: Cluster, source: Path) -> None:
    before = await _begin(cluster, source)
    _end(cluster, HOST)
    await cluster.apply("pending", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.until(lambda: _phases(cluster, "pending", ["pending"]), "it is pending: its only worker is away")
    commands = await _commands(cluster)
    _end(cluster, "controller")

    await _upgrade(cluster)
    await cluster.running("pending")
    await _adopted(cluster, before, commands)
    await _stopped(cluster, *RUNNING, "pending")


def _end(cluster: Cluster, name: str) -> None:
    process = cluster.processes.pop(name)
    process.terminate()
    assert process.wait(STOP_S) == 0, cluster.log(name)
