"""A stop does not wait for a Docker that hangs, and nothing runs without a claim."""

import asyncio
import time
from pathlib import Path

import psutil

from support.docker.dockerd import Dockerd
from support.docker.images import contained_engine
from support.processes.agents import GPU0, running_agent
from support.standins.controller import ControllerDouble


async def test_a_stop_while_the_start_hangs_is_told_and_ends_with_the_container(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        with dockerd.hanging_starts():
            await controller.start_order("i-1", contained_engine(gpus=(GPU0,)))
            await dockerd.until_containers(1)
            await asyncio.sleep(1.0)  # it is in the hook
            await controller.stop_order("i-1", drain_s=0.5)
            await controller.state("i-1", "stopping")
            await controller.until(
                lambda: "Docker hangs in the start" in (controller.latest("i-1") or controller.reports[0]).message
            )
            latest = controller.latest("i-1")
            assert latest is not None
            assert latest.state == "stopping", "whether it runs is unknown, so its claim stays"
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code, ended.message) == ("stopped", None, "")
        assert await dockerd.containers() == []


async def test_a_stop_while_docker_hangs_ends_in_time(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_engine("--ignore-sigterm"))
        running = await controller.state("i-1", "running", "exited")
        assert running.state == "running", running.message
        with dockerd.hanging():
            began = time.monotonic()
            await controller.stop_order("i-1", drain_s=0.5)
            ended = await controller.state("i-1", "exited")
            assert time.monotonic() - began < 10.0, "half of what one call of Docker may take"
            assert (ended.reason, ended.exit_code) == ("stopped", None)
            assert "is gone, and Docker does not answer; how it ended is unknown" in ended.message
            assert not psutil.pid_exists(running.pid or 0)
        await dockerd.until_containers(0)
