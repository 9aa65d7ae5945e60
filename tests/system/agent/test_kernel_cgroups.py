"""Control groups of the kernel's own: kills, limits and OOM kills. Skipped where the host offers no such group."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.process_records import ProcessKey
from agent.processes.cgroups import MOST_PROCESSES, Cgroup, Cgroups, oom_message
from agent.processes.spawn import spawn

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


def run_in(group: Cgroup, folder: Path, script: str) -> int:
    """Starts a script that goes on once it is in the group; returns its pid."""
    go = folder / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.05; done; {script}"
    pid = spawn(["bash", "-c", waits], dict(os.environ), work=folder, log=folder / "log")
    group.add(pid)
    go.touch()
    return pid


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)


async def ended(pid: int) -> int:
    """Its exit code."""
    async with asyncio.timeout(20):
        while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:  # noqa: ASYNC110, ASYNC222 - it does not wait
            await asyncio.sleep(0.05)
    return os.waitstatus_to_exitcode(found[1])


def needs(group: Cgroup, file: str) -> None:
    if not (group.path / file).exists():
        pytest.skip(f"this host's groups of version 2 have no {file}")


async def test_a_kill_ends_all_members_whatever_their_session(group: Cgroup, tmp_path: Path) -> None:
    pid = run_in(group, tmp_path, "setsid sleep 1000 & setsid sleep 1000 & exec sleep 1000")
    await until(lambda: len(group.members()) >= 3)
    group.kill()
    assert await ended(pid) == -signal.SIGKILL
    await until(lambda: not group.members())
    assert oom_message(group, LIMIT_MIB) == "", "no kill of the kernel's"


async def test_the_kernel_kills_what_exceeds_its_memory_and_counts_it(group: Cgroup, tmp_path: Path) -> None:
    needs(group, "memory.max")
    assert (group.path / "memory.max").read_text().strip() == str(LIMIT_MIB * 2**20)
    assert (group.path / "memory.oom.group").read_text().strip() == "1"
    group.limit("memory.swap.max", "0")  # else it would swap
    pid = run_in(group, tmp_path, f"exec {sys.executable} -c 'print(len(b\"x\" * {16 * LIMIT_MIB * 2**20}))'")
    assert await ended(pid) == -signal.SIGKILL
    assert group.oom_kills() >= 1
    assert oom_message(group, LIMIT_MIB).startswith("oom_killed: ")


async def test_the_kernel_refuses_more_processes_than_the_limit(group: Cgroup, tmp_path: Path) -> None:
    needs(group, "pids.max")
    assert (group.path / "pids.max").read_text().strip() == str(MOST_PROCESSES)
    group.limit("pids.max", "5")
    pid = run_in(group, tmp_path, "for n in {1..20}; do sleep 1000 & done; wait")
    await until(lambda: "max 0" not in (group.path / "pids.events").read_text())
    assert len(group.members()) <= 5
    group.kill()
    assert await ended(pid) == -signal.SIGKILL
    await until(lambda: not group.members())
