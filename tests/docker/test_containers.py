"""Engines in containers of a real Docker engine: started, logged, stopped, and reported as processes are."""

from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agent.sampling.pid_owners import PidOwners
from agent.state.process_records import ProcessKey, ProcessRecord
from schemas.exit_causes import cause_of, cause_of_failed_start
from schemas.wire import PROXY_ENGINE_PREFIX, PROXY_LOGS_PREFIX
from support.docker.dockerd import Dockerd
from support.docker.images import contained, contained_engine, contained_script
from support.docker.observed import said, until_logged
from support.processes.agents import GPU0, GPU1, running_agent
from support.standins.controller import ControllerDouble, start_order


def all_of(pid: int) -> list[int]:
    """The pids of a container, as the driver would list them."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


async def test_an_engine_serves_and_stops(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        assert (await controller.start_order("i-1", contained_engine(gpus=(GPU1, GPU0)))).outcome == "accepted"
        running = await controller.state("i-1", "running", "exited")
        assert running.state == "running", running.message
        (name,) = await dockerd.containers()
        assert running.pid is not None
        assert psutil.pid_exists(running.pid)
        assert '"demo"' in await said(controller, f"{PROXY_ENGINE_PREFIX}/i-1/v1/models")
        await until_logged(tmp_path, "serving demo on 0.0.0.0:")
        config = await dockerd.inspect(name)
        host = config["HostConfig"]
        assert (host["CapDrop"], host["SecurityOpt"], host["Privileged"]) == (["ALL"], ["no-new-privileges"], False)
        (bound,) = [one for ports in host["PortBindings"].values() for one in ports]
        assert bound["HostIp"] == "127.0.0.1"
        assert f"NVIDIA_VISIBLE_DEVICES={GPU1},{GPU0}" in dockerd.environments(running.pid)
        record = ProcessRecord(instance="i-1", epoch=1, rank=0, state="running", boot_id="b", pid=running.pid)
        owners = PidOwners("/elsewhere").find(all_of(running.pid), [record])
        assert set(owners.values()) == {ProcessKey("i-1", 1, 0)}
        assert dockerd.calls.read_text().startswith("prestart")
        await controller.stop_order("i-1")
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("stopped", 0)
        await dockerd.until_containers(0)


async def test_logs_of_the_start_before_stay(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        for epoch in (1, 2):
            script = f"import sys; print('start {epoch}'); sys.stdout.write('no end of line'); sys.exit({epoch})"
            await controller.start_order("i-1", contained_script(script), epoch=epoch)
            ended = await controller.state("i-1", "exited", epoch=epoch)
            assert (ended.reason, ended.exit_code) == ("exit", epoch), ended.message
        assert await said(controller, f"{PROXY_LOGS_PREFIX}/i-1?previous=1") == "start 2\nno end of line"
        assert (tmp_path / "data/instances/i-1/logs/1-0.log").read_text() == "start 1\nno end of line"


@pytest.mark.parametrize(
    ("script", "code", "cause"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "crash"),
        ("import argparse; argparse.ArgumentParser(prog='vllm serve').parse_args(['--a'])", 2, "engine_usage"),
        ("print('torch.OutOfMemoryError: CUDA out of memory.'); raise SystemExit(1)", 1, "gpu_oom"),
    ],
)
async def test_an_exit_says_why(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path, script: str, code: int, cause: str
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_script(script))
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", code)
        assert cause_of(ended.message, ended.exit_code) == cause
        await dockerd.until_containers(0)


async def test_the_kernel_kills_over_the_limit(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        order = contained_script("a = []\nwhile True: a.append(bytearray(2**20))")
        await controller.start_order("i-1", replace(order, host_memory_mib=64))
        ended = await controller.state("i-1", "exited")
        assert ended.message.startswith("oom_killed: ")
        assert "64 MiB" in ended.message


async def test_what_ignores_sigterm_is_killed(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_engine("--ignore-sigterm"))
        running = await controller.state("i-1", "running")
        await controller.stop_order("i-1", drain_s=0.5)
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("stopped", -9)
        assert not psutil.pid_exists(running.pid or 0)


async def test_limits_and_folders(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "mine"
    model.mkdir()
    data.mkdir()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/1f").write_text("w")
    (model / "weights").symlink_to("../blobs/1f")  # as in a cache of the hub
    script = f"""
import os
print(open({str(model / "weights")!r}).read(), os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize)
open('/mine/made', 'w').close()
print(open('/proc/self/status').read())
try:
    open({str(model / "weights")!r}, 'a')
except OSError as error:
    print(error.strerror)
"""
    order = contained_script(script, volumes={str(data): "/mine"}, models=(str(model),), shm_size_mib=96)
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", order)
        await controller.state("i-1", "exited")
    text = (tmp_path / "data/instances/i-1/logs/1-0.log").read_text()
    assert text.startswith(f"w {96 * 2**20}\n")
    assert "Read-only file system" in text
    assert "NoNewPrivs:\t1" in text
    assert "CapEff:\t0000000000000000" in text
    assert (data / "made").exists()


async def test_a_start_that_fails_leaves_nothing(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_script("1", volumes={"/nowhere/at/all": "/x"}))
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("spawn_failed", None)
        assert "a folder to mount is not on this host: /nowhere/at/all" in ended.message
        assert await dockerd.containers() == []


async def test_a_program_that_the_image_lacks(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained(start_order("vlm", "serve")))
        ended = await controller.state("i-1", "exited")
        assert ended.exit_code == 127
        assert "vlm" in ended.message
        assert "No such file" in ended.message


async def test_an_image_that_may_not_be_pulled(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_engine(image="not/here:1", pull="never"))
        ended = await controller.state("i-1", "exited")
        assert cause_of_failed_start(ended.message) == "image_not_found"


async def test_without_toolkit_and_bridge(controller: ControllerDouble, bare: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=bare.address):
        await controller.start_order("i-1", contained_engine(gpus=(GPU0,)))
        ended = await controller.state("i-1", "exited")
        assert cause_of_failed_start(ended.message) == "runtime_unsupported"
        assert "nvidia-container-toolkit" in ended.message
        assert await bare.containers() == []
        await controller.start_order("i-2", contained_engine())
        await controller.state("i-2", "running")
        await until_logged(tmp_path, "serving demo on 127.0.0.1:", "i-2")
        assert "Docker has no bridge network" in await said(controller, f"{PROXY_LOGS_PREFIX}/i-2")
        assert '"demo"' in await said(controller, f"{PROXY_ENGINE_PREFIX}/i-2/v1/models")


async def test_an_agent_without_docker_says_so(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker="off"):
        await controller.start_order("i-1", contained_engine())
        ended = await controller.state("i-1", "exited")
        assert cause_of_failed_start(ended.message) == "runtime_unsupported"


async def test_the_host_says_what_it_can_run(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        (runtime,) = controller.hellos[-1].inventory.host.runtimes
        assert (runtime.name, runtime.usable) == ("docker", True)
        assert runtime.version
        assert runtime.gpus or "nvidia-container-toolkit" in runtime.reason


async def test_a_container_runs_as_the_user_of_the_settings(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    script = "import os; print(os.getuid(), os.getgid(), os.getgroups()); open('mine', 'a').close()"
    work = tmp_path / "data/instances/i-1/work"
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_script(script))
        await controller.state("i-1", "exited")
        assert (work / "mine").stat().st_uid == 0
    fields = {"docker": dockerd.address, "container_user": "4711:4712", "join_token": None}
    async with running_agent(controller, tmp_path, **fields):
        await controller.start_order("i-1", contained_script(script), epoch=2)
        ended = await controller.state("i-1", "exited", epoch=2)
        assert ended.exit_code == 0, ended.message
    assert (tmp_path / "data/instances/i-1/logs/2-0.log").read_text() == "4711 4712 [4712]\n"
    assert {path.stat().st_uid for path in (work, work / "mine")} == {4711}
