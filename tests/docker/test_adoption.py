"""Agents and Docker engines that end, start again, or share a host: no container is lost, doubled or declared dead."""

import asyncio
import os
import signal
from pathlib import Path

import aiodocker
import aiohttp
import psutil
import pytest
from msgspec.structs import replace

from agent.containers import runtime
from agent.decide.containers import AGENT_LABEL
from agent.state.journal import Journal
from schemas.wire import PROXY_ENGINE_PREFIX, ProcessReport
from support.docker.dockerd import Dockerd
from support.docker.images import IMAGE, contained_engine, contained_script
from support.docker.observed import logged, until
from support.processes.agents import GPU0, running_agent
from support.standins.controller import SECRET, ControllerDouble, controller_double

COUNTS = """
import time
for number in range(10**6):
    print(number, flush=True)
    time.sleep(0.05)
"""


async def started(controller: ControllerDouble, instance: str = "i-1", *extra: str) -> ProcessReport:
    await controller.start_order(instance, contained_engine(*extra, gpus=(GPU0,)))
    running = await controller.state(instance, "running", "exited")
    assert running.state == "running", running.message
    return running


async def orphaned(controller: ControllerDouble, dockerd: Dockerd, folder: Path) -> ProcessReport:
    """An engine whose agent has crashed."""
    async with running_agent(controller, folder, docker=dockerd.address) as agent:
        running = await started(controller)
        await agent.crash()
    return running


async def test_a_container_outlives_the_agent_and_is_adopted(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    before = await orphaned(controller, dockerd, tmp_path)
    names = await dockerd.containers()
    async with running_agent(controller, tmp_path, docker=dockerd.address, join_token=None):
        (known,) = controller.hellos[-1].processes
        assert (known.state, known.pid, known.ready) == ("running", before.pid, True)
        assert await dockerd.containers() == names
        await controller.stop_order("i-1")
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("stopped", 0)
        await dockerd.until_containers(0)


async def test_a_log_goes_on_where_the_agent_left_it(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address) as agent:
        await controller.start_order("i-1", contained_script(COUNTS))
        await controller.state("i-1", "running")
        await until(lambda: _is(len(logged(tmp_path)) > 20))
        await agent.crash()
    seen = len(logged(tmp_path))
    async with running_agent(controller, tmp_path, docker=dockerd.address, join_token=None):
        await until(lambda: _is(len(logged(tmp_path)) > seen + 20))
        await controller.stop_order("i-1", drain_s=0.0)
        await controller.state("i-1", "exited")
    assert logged(tmp_path) == [str(number) for number in range(len(logged(tmp_path)))]


async def _is(value: bool) -> bool:
    return value


async def test_an_end_while_no_agent_runs_is_known(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address) as agent:
        await controller.start_order("i-1", contained_engine("--exit-after", "4", "--exit-code", "7"))
        running = await controller.state("i-1", "running")
        await agent.crash()
    await until(lambda: _is(not psutil.pid_exists(running.pid or 0)))
    async with running_agent(controller, tmp_path, docker=dockerd.address, join_token=None):
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", 7)
        await dockerd.until_containers(0)


async def test_a_container_that_another_removed_is_gone(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    await orphaned(controller, dockerd, tmp_path)
    await dockerd.clear()
    async with running_agent(controller, tmp_path, docker=dockerd.address, join_token=None):
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("gone", None)


async def test_an_engine_of_docker_that_is_killed_ends_nothing(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        running = await started(controller)
        dockerd.kill()
        try:
            heartbeats = len(controller.heartbeats)
            await controller.until(lambda: len(controller.heartbeats) > heartbeats + 20)  # 4 s: more than two probes
            assert psutil.pid_exists(running.pid or 0)
            assert controller.latest("i-1") == running
        finally:
            await asyncio.to_thread(dockerd.start)
        await until(lambda: _serves(controller))
        assert controller.latest("i-1") == running
        await controller.stop_order("i-1")
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("stopped", 0)


async def _serves(controller: ControllerDouble) -> bool:
    url = f"http://127.0.0.1:{controller.hellos[-1].proxy_port}{PROXY_ENGINE_PREFIX}/i-1/v1/models"
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status == 200


async def test_a_stop_while_docker_is_away_kills_by_pid(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        running = await started(controller)
        dockerd.kill()
        try:
            await controller.stop_order("i-1", drain_s=0.5)
            ended = await controller.state("i-1", "exited")
            assert ended.reason == "stopped"
            assert not psutil.pid_exists(running.pid or 0)
        finally:
            await asyncio.to_thread(dockerd.start)


async def test_strays_go_and_others_stay(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SWEEP_S", 0.5)
    (tmp_path / "other").mkdir()
    async with controller_double() as other, running_agent(other, tmp_path / "other", docker=dockerd.address):
        await started(other, "i-1")
        (theirs,) = await dockerd.containers()
        async with running_agent(controller, tmp_path, docker=dockerd.address) as agent:
            await started(controller, "i-1")
            await started(controller, "i-2")
            await agent.crash()
        journal = Journal(tmp_path / "data")
        owner = journal.host_state.container_owner
        (lost,) = journal.of("i-2")
        journal.record(replace(lost, state="exited", reason="gone", order=None))
        journal.close()
        foreign = await _foreign(dockerd)
        assert len(await dockerd.containers()) == 4
        async with running_agent(controller, tmp_path, docker=dockerd.address, join_token=None):
            await dockerd.until_containers(3)
            left = {name: (await dockerd.inspect(name))["Config"]["Labels"] for name in await dockerd.containers()}
            assert {theirs, foreign} < set(left)
            assert [labels.get(AGENT_LABEL) for labels in left.values()].count(owner) == 1
            latest = other.latest("i-1")
            assert latest is not None
            assert latest.state == "running"


async def _foreign(dockerd: Dockerd) -> str:
    """A container that no agent has made."""
    async with aiodocker.Docker(dockerd.address) as docker:
        await docker.containers.create(
            {"Image": IMAGE, "Cmd": ["x"], "Labels": {"gpuward.instance": "i-2"}}, name="mine"
        )
    return "mine"


async def test_a_container_that_is_killed_by_another_is_seen(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        running = await started(controller)
        os.kill(running.pid or 0, signal.SIGKILL)
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", -9)
