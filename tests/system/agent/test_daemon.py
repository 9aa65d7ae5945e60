"""The agent as a process, under uvloop: signals, SIGKILL, and the engines afterwards."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from support.processes.agents import GPU0, HOST, write_hosts
from support.standins.controller import TOKEN, WAIT_S, ControllerDouble, simulated_order

MAIN = "import sys; from agent.daemon import main; from agent.settings import AgentSettings; "
SERVE = MAIN + "sys.exit(main(AgentSettings()))"


@asynccontextmanager
async def daemon(controller: ControllerDouble, folder: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    given = {
        "GPUWARD_AGENT_CONTROLLER_URL": controller.url,
        "GPUWARD_JOIN_TOKEN": TOKEN,
        "GPUWARD_AGENT_SIMULATE": str(write_hosts(folder, HOST)),
        "GPUWARD_AGENT_DATA_DIR": str(folder / "data"),
        "GPUWARD_AGENT_PROXY_HOST": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, env={**os.environ, **given, **env}, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(WAIT_S):
            await process.communicate()


async def test_an_engine_survives_the_agents_sigkill_and_is_adopted(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with daemon(controller, tmp_path) as agent:
        await controller.connected()
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        before = await controller.state("i-1", "running")
        agent.kill()
        await agent.wait()
    engine = psutil.Process(before.pid)
    assert engine.is_running()
    async with daemon(controller, tmp_path) as agent:
        await controller.connected(2)
        assert [(p.state, p.pid) for p in controller.hellos[1].processes] == [("running", before.pid)]
        engine.kill()
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", -signal.SIGKILL)


async def test_sigterm_stops_engine_and_agent_in_time(controller: ControllerDouble, tmp_path: Path) -> None:
    async with daemon(controller, tmp_path) as agent:
        await controller.connected()
        await controller.start_order("i-1", simulated_order("--ignore-sigterm", drain_time_s=600.0))
        report = await controller.state("i-1", "running")
        agent.send_signal(signal.SIGTERM)
        async with asyncio.timeout(8):
            assert await agent.wait() == 0
    assert (await controller.state("i-1", "exited")).reason == "agent_stopped"
    assert not psutil.pid_exists(report.pid or 0)
    assert controller.goodbyes == 1


async def test_sigterm_ends_the_agent_without_a_controller(controller: ControllerDouble, tmp_path: Path) -> None:
    async with daemon(controller, tmp_path) as agent:
        await controller.connected()
        await controller.stop()
        agent.terminate()
        async with asyncio.timeout(8):
            assert await agent.wait() == 0


async def test_without_the_library_of_nvml_the_error_names_the_extra_and_simulate(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "pynvml.py").write_text("raise ImportError('no driver here')\n")
    path = os.pathsep.join([str(fake), os.environ.get("PYTHONPATH", "")])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVE,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "GPUWARD_AGENT_CONTROLLER_URL": controller.url,
            "GPUWARD_AGENT_DATA_DIR": str(tmp_path / "data"),
        },
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"gpuward[agent]" in errors
    assert b"--simulate" in errors
