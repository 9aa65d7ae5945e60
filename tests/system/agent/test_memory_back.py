"""An exit is reported once the driver gives the memory back: a real agent over a false driver."""

import asyncio
from pathlib import Path

import psutil
import pytest

from agent.processes import lifecycle
from support.nvml.false_driver import FalseDriver
from support.nvml.reader import A
from support.processes.agents import running_agent
from support.standins.controller import ControllerDouble, start_order

STAYS_S = 2.0


async def _on_its_gpu(controller: ControllerDouble, driver: FalseDriver) -> int:
    """Starts an engine, and waits until the agent has seen it on its GPU; returns its pid."""
    await controller.start_order("i-1", start_order("sleep", "1000", gpus=(A,)))
    pid = (await controller.state("i-1", "running")).pid
    assert pid is not None
    driver.add(f"proc {A} pid={pid} mem=1000 sm=10")

    def seen() -> bool:
        return any(
            one.instance == "i-1" and one.utilization for period in controller.periods for one in period.processes
        )

    await controller.until(seen, 60)
    return pid


async def test_the_exit_waits_until_the_memory_is_back(
    controller: ControllerDouble, driver: FalseDriver, tmp_path: Path
) -> None:
    controller.sample_s = 1.0
    async with running_agent(controller, tmp_path, simulate=None, name="gpu-1"):
        pid = await _on_its_gpu(controller, driver)
        await controller.stop_order("i-1", drain_s=5)
        async with asyncio.timeout(20):
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        await asyncio.sleep(STAYS_S)
        report = controller.latest("i-1")
        assert report is not None
        assert report.state == "stopping", "the driver still lists it"
        driver.only()
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.message) == ("stopped", "")


async def test_after_the_deadline_the_exit_says_what_is_held(
    controller: ControllerDouble, driver: FalseDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "BACK_LIMIT_S", 1.0)
    controller.sample_s = 1.0
    async with running_agent(controller, tmp_path, simulate=None, name="gpu-1"):
        await _on_its_gpu(controller, driver)
        await controller.stop_order("i-1", drain_s=5)
        ended = await controller.state("i-1", "exited")
        assert ended.message == f"gpu_memory_held: 1 s after its end the driver still lists it on {A}"
