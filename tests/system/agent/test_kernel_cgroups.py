"""Control groups of the kernel's own: kills, limits and OOM kills. Skipped where the host offers no such group."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.processes.cgroups import MOST_PROCESSES, Cgroup, Cgroups, oom_message
from agent.processes.engine_launch import EngineLaunch
from agent.processes.engine_parent import EndRecord, EngineParent
from agent.state.process_records import ProcessKey

KEY = ProcessKey("i-1", 1, 0)
MOUNT = Path("/sys/fs/cgroup")
REAL = MOUNT if (MOUNT / "cgroup.procs").exists() else MOUNT / "unified"
LIMIT_MIB = 64

pytestmark = pytest.mark.skipif(not os.access(REAL / "cgroup.procs", os.W_OK), reason="no writable cgroup v2 here")


@pytest.fixture
def group() -> Iterator[Cgroup]:
    folder = REAL / f"gpuward-kernel-test-{os.getpid()}"
    folder.mkdir()
    try:
        made = Cgroups(folder).make(KEY, LIMIT_MIB)
        assert made is not None
        yield made
        made.kill()
    finally:
        for path in (folder / "engines" / "i-1.1.0", folder / "engines", folder):
            Cgroup(path).remove()


class Started(NamedTuple):
    """A script that runs in a group."""

    parent: EngineParent
    end: EndRecord

    async def ended(self) -> int:
        """Its exit code."""
        await until(lambda: self.end.read() is not None)
        await self.parent.release()
        end = self.end.read()
        assert end is not None
        return end.code


async def run_in(group: Cgroup, folder: Path, script: str) -> Started:
    """Starts a script in the group."""
    record = folder / "end"
    argv = ["bash", "-c", script]
    async with EngineLaunch(argv, dict(os.environ), work=folder, log=folder / "log", record=record) as launch:
        group.add(launch.pid)
        await launch.go()
    return Started(launch.parent, EndRecord(record, launch.pid, launch.start_ticks))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


def needs(group: Cgroup, file: str) -> None:
    if not (group.path / file).exists():
        pytest.skip(f"this host's groups of version 2 have no {file}")


async def test_a_kill_ends_all_members_whatever_their_session(group: Cgroup, tmp_path: Path) -> None:
    started = await run_in(group, tmp_path, "setsid sleep 1000 & setsid sleep 1000 & exec sleep 1000")
    await until(lambda: len(group.members()) >= 3)
    group.kill()
    assert await started.ended() == -signal.SIGKILL
    await until(lambda: not group.members())
    assert oom_message(group, LIMIT_MIB) == "", "no kill of the kernel's"


async def test_the_kernel_kills_what_exceeds_its_memory_and_counts_it(group: Cgroup, tmp_path: Path) -> None:
    needs(group, "memory.max")
    assert (group.path / "memory.max").read_text().strip() == str(LIMIT_MIB * 2**20)
    assert (group.path / "memory.oom.group").read_text().strip() == "1"
    group.limit("memory.swap.max", "0")  # else it would swap
    started = await run_in(group, tmp_path, f"exec {sys.executable} -c 'print(len(b\"x\" * {16 * LIMIT_MIB * 2**20}))'")
    assert await started.ended() == -signal.SIGKILL
    assert group.oom_kills() >= 1
    assert oom_message(group, LIMIT_MIB).startswith("oom_killed: ")


async def test_the_kernel_refuses_more_processes_than_the_limit(group: Cgroup, tmp_path: Path) -> None:
    needs(group, "pids.max")
    assert (group.path / "pids.max").read_text().strip() == str(MOST_PROCESSES)
    group.limit("pids.max", "5")
    started = await run_in(group, tmp_path, "for n in {1..20}; do sleep 1000 & done; wait")
    await until(lambda: "max 0" not in (group.path / "pids.events").read_text())
    assert len(group.members()) <= 5
    group.kill()
    assert await started.ended() == -signal.SIGKILL
    await until(lambda: not group.members())
