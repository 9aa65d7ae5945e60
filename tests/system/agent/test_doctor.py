"""`gpuward doctor` as a process on this host, with a false driver library, beside a real agent."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.wire import SPOKEN
from support.nvml.false_driver import GPUS, FalseDriver
from support.processes.agents import AgentUnderTest, settings_for
from support.standins.controller import CREDENTIAL, WAIT_S, ControllerDouble

LIMIT_S = 60.0
AS_IS = "from cli.main import main; main()"
# The interpreter may lie where only root can read: all is imported before the rights are given up.
AS_USER = (
    "import os, agent.doctor.doctor, agent.settings, rich.text, rich.table, yaml; from cli.app import app;"
    " os.setgroups([]); os.setgid(65534); os.setuid(65534); app()"
)


async def doctor(*argv: str, env: dict[str, str], ordinary: bool = False) -> tuple[int, dict[str, tuple[str, str]]]:
    """Runs it; returns its exit code, and status and message of each check."""
    words = (sys.executable, "-P", "-c", AS_USER if ordinary else AS_IS, "doctor", "-o", "json", *argv)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUWARD_")}
    async with asyncio.timeout(LIMIT_S):
        process = await asyncio.create_subprocess_exec(
            *words, "--env-file", "/nonexistent", env={**kept, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
    assert out, err
    found = json.loads(out)
    assert found["ok"] == (process.returncode == 0)
    assert process.returncode in {0, 1}, err
    return process.returncode, {one["check"]: (one["status"], one["message"]) for one in reversed(found["findings"])}


async def test_a_host_with_its_agent(controller: ControllerDouble, tmp_path: Path) -> None:
    driver = FalseDriver(tmp_path)
    settings = settings_for(controller, tmp_path)
    agent = AgentUnderTest(settings)
    async with asyncio.timeout(WAIT_S):
        await agent.ready.wait()
    argv = ("--controller", controller.url, "--data-dir", str(settings.data_dir))
    sessions = len(controller.hellos)
    _, found = await doctor(*argv, env=driver.env)
    assert found["driver"] == ("ok", "NVIDIA driver 580.95.05")
    assert found["nvml"] == ("ok", "NVML lists 2 GPUs")
    assert found["gpu"][0] == "ok"
    assert found["agent"] == ("ok", f"the agent runs (pid {os.getpid()}, worker sim-1), connected")
    assert found["port"][0] == "ok"
    assert "is the agent's" in found["port"][1]
    assert found["credential"] == ("ok", "the controller accepts this worker's credential")
    assert found["protocol"] == ("ok", f"protocol {SPOKEN.highest}")
    assert found["clock"][0] == "ok"
    assert {"cgroups", "ports", "disk", "limits", "engine", "docker"} <= found.keys()
    assert len(controller.hellos) == sessions, "it takes no session from the agent"
    assert not agent.task.done()
    await agent.stop()
    driver.add(f"fail * 15 {GPUS[1]}")
    controller.credentials.discard(CREDENTIAL)
    controller.headers["Date"] = "Mon, 01 Jan 2024 00:00:00 GMT"
    with socket.create_server(("127.0.0.1", 0)) as other:
        env = {**driver.env, "GPUWARD_AGENT_PROXY_HOST": "127.0.0.1", "AWS_SESSION_TOKEN": "hunter2"}
        code, found = await doctor(*argv, "--proxy-port", str(other.getsockname()[1]), env=env)
    assert code == 1
    assert {name for name, (status, _) in found.items() if status == "fails"} == {"gpu", "port", "credential", "clock"}
    assert f"(pid {os.getpid()})" in found["port"][1]
    assert "no agent runs" in found["agent"][1]
    assert "AWS_SESSION_TOKEN" in found["environment"][1]
    assert "hunter2" not in str(found)


@pytest.mark.cases
async def test_without_a_controller_a_gpu_or_rights(tmp_path: Path) -> None:
    code, found = await doctor("--data-dir", str(tmp_path / "new"), env={})
    assert code == 1
    assert found["nvml"][0] == "fails"
    assert found["controller"] == ("warning", "no address given")
    assert not (tmp_path / "new").exists(), "it changes nothing"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    code, found = await doctor("--data-dir", str(tmp_path / "new"), "--controller", url, env={})
    assert found["controller"][0] == "fails"


@pytest.mark.cases
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
async def test_as_an_ordinary_user(controller: ControllerDouble, tmp_path: Path) -> None:
    settings = settings_for(controller, tmp_path)
    agent = AgentUnderTest(settings)
    async with asyncio.timeout(WAIT_S):
        await agent.ready.wait()
    argv = ("--controller", controller.url, "--data-dir", str(settings.data_dir))
    code, found = await doctor(*argv, env={"HOME": "/nonexistent"}, ordinary=True)
    await agent.stop()
    assert code == 1
    assert found["agent"][0] == "warning"
    assert found["credential"][0] == "warning"
    assert found["disk"][0] == "fails"
    assert found["controller"][0] == "ok"
