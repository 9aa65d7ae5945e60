"""Engines in control groups: with files that look like the kernel's, and in the kernel's own where there are some."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agent.processes.cgroups import Cgroup, Cgroups
from agent.processes.engine_launch import EngineLaunch
from agent.processes.engine_parent import EndRecord
from agent.processes.process_group import ProcessGroup
from agent.state.process_records import ProcessKey
from support.processes.agents import running_agent
from support.standins.controller import ControllerDouble, simulated_order, start_order

KEY = ProcessKey("i-1", 1, 0)
FILES = ("cgroup.procs", "pids.max", "memory.max", "memory.oom.group", "memory.events", "cgroup.kill")
REAL = Path("/sys/fs/cgroup") if Path("/sys/fs/cgroup/cgroup.procs").exists() else Path("/sys/fs/cgroup/unified")


def made(folder: Path, name: str = "i-1.1.0") -> Path:
    """A group as the kernel makes it, with all its files; it begins empty."""
    path = folder / "engines" / name
    path.mkdir(parents=True)
    (folder / "cgroup.procs").touch()
    for file in FILES:
        (path / file).write_text("")
    return path


async def test_an_engine_runs_within_its_limits_and_an_oom_kill_is_told(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    folder = tmp_path / "cgroup"
    group = made(folder)
    async with running_agent(controller, tmp_path, cgroup=str(folder)):
        await controller.start_order("i-1", replace(simulated_order(), host_memory_mib=512))
        running = await controller.state("i-1", "running")
        assert (group / "cgroup.procs").read_text() == str(running.pid)
        assert (group / "memory.max").read_text() == str(512 * 2**20)
        assert (group / "memory.oom.group").read_text() == "1"
        assert int((group / "pids.max").read_text()) > 1000
        (group / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 1\n")
        assert running.pid is not None
        os.kill(running.pid, signal.SIGKILL)
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", -signal.SIGKILL)
        assert ended.message.startswith("oom_killed: ")
        assert "512 MiB" in ended.message


async def test_a_kill_without_an_oom_says_nothing_of_one(controller: ControllerDouble, tmp_path: Path) -> None:
    folder = tmp_path / "cgroup"
    group = made(folder)
    (group / "memory.events").write_text("oom 0\noom_kill 0\n")
    async with running_agent(controller, tmp_path, cgroup=str(folder)):
        await controller.start_order("i-1", start_order("bash", "-c", "kill -9 $$"))
        ended = await controller.state("i-1", "exited")
    assert (ended.exit_code, ended.message) == (-signal.SIGKILL, "")
    assert (group / "memory.max").read_text() == "", "no limit without a stated claim"


async def test_without_a_folder_engines_run_in_process_groups(controller: ControllerDouble, tmp_path: Path) -> None:
    assert not Cgroups(None).available
    for folder in (tmp_path / "none" / "such", tmp_path):
        assert not Cgroups(folder).available
    async with running_agent(controller, tmp_path, cgroup=str(tmp_path / "none" / "such")):
        await controller.start_order("i-1", simulated_order())
        await controller.state("i-1", "running")


def test_empty_groups_of_engines_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    groups = Cgroups(tmp_path)
    for key in (KEY, ProcessKey("i-2", 1, 0)):
        assert groups.make(key, None) is not None
    groups.prune([KEY])
    assert [path.name for path in (tmp_path / "engines").iterdir()] == ["i-1.1.0"]
    assert groups.find(KEY) is not None
    assert groups.find(ProcessKey("i-2", 1, 0)) is None


@pytest.mark.skipif(not os.access(REAL / "cgroup.procs", os.W_OK), reason="no writable cgroup v2 here")
async def test_the_kernel_kills_what_hides_from_the_process_group(tmp_path: Path) -> None:
    folder = REAL / f"gpuward-test-{os.getpid()}"
    folder.mkdir()
    try:
        group = Cgroups(folder).make(KEY, None)
        assert group is not None
        # Its grandchild has a session of its own, and none of its environment: only the group knows it.
        script = "sleep 0.3; env -i setsid sleep 1000 & exec sleep 1000"
        argv, record = ["bash", "-c", script], tmp_path / "end"
        async with EngineLaunch(argv, dict(os.environ), work=tmp_path, log=tmp_path / "log", record=record) as launch:
            group.add(launch.pid)
            await launch.go()
        pid, end = launch.pid, EndRecord(record, launch.pid, launch.start_ticks)
        async with asyncio.timeout(20):
            while len(group.members()) < 2 or not _sleeps_alone(group, pid):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        hidden = [member for member in group.members() if member != pid]
        watched = ProcessGroup(pid, KEY, str(tmp_path), group, parent=launch.parent, record=end)
        assert await watched.kill(20) == ""
        assert watched.exit_code == -signal.SIGKILL
        watched.close()
        assert not any(psutil.pid_exists(one) and psutil.Process(one).status() != "zombie" for one in hidden)
        group.remove()
        assert not group.path.exists()
    finally:
        for path in (folder / "engines" / "i-1.1.0", folder / "engines"):
            Cgroup(path).remove()
        folder.rmdir()


def _sleeps_alone(group: Cgroup, leader: int) -> bool:
    others = [pid for pid in group.members() if pid != leader]
    return bool(others) and all(psutil.Process(pid).name() == "sleep" for pid in others)
