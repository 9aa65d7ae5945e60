"""Owners of pids: real processes with children."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.sampling.pid_owners import PidOwners
from agent.state.process_records import ProcessKey, ProcessRecord

LIMIT_S = 20.0
# A child in the same session, a child in its own session without the marker, and that one's child.
TREE = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
apart = [sys.executable, "-c", "import subprocess, sys; subprocess.run(" + repr(sleep) + ", env={})"]
subprocess.Popen(sleep)
subprocess.Popen(apart, start_new_session=True, env={})
time.sleep(1000)
"""


@asynccontextmanager
async def tree(env: dict[str, str]) -> AsyncIterator[psutil.Process]:
    """A process with its three descendants."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TREE, env={**os.environ, **env}, start_new_session=True
    )
    leader = psutil.Process(process.pid)
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(leader.children(recursive=True)) < 3:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        yield leader
    finally:
        for child in leader.children(recursive=True):
            child.kill()
        process.kill()
        await process.wait()


def record(key: ProcessKey, pid: int | None) -> ProcessRecord:
    return ProcessRecord(instance=key.instance, epoch=key.epoch, rank=key.rank, state="running", boot_id="b", pid=pid)


async def test_a_process_owns_its_whole_tree(tmp_path: Path) -> None:
    key, other = ProcessKey("i-1", 2, 0), ProcessKey("i-2", 1, 0)
    owners = PidOwners(str(tmp_path))
    async with tree({}) as leader, tree({}) as neighbour, tree({}) as unmanaged:
        live = [record(key, leader.pid), record(other, neighbour.pid)]
        own = {p.pid for p in (leader, *leader.children(recursive=True))}
        neighbours = {p.pid for p in (neighbour, *neighbour.children(recursive=True))}
        foreign = {p.pid for p in (unmanaged, *unmanaged.children(recursive=True))} | {os.getpid()}
        expected = dict.fromkeys(own, key) | dict.fromkeys(neighbours, other) | dict.fromkeys(foreign)
        pids = {*expected, 2**22 + 1}  # the last one is gone
        assert owners.find(pids, live) == expected
        assert owners.find(pids, live) == expected  # from the cache
    exited = {leader.pid, neighbour.pid}  # the driver may still report them
    assert owners.find(exited, live) == {leader.pid: key, neighbour.pid: other}
    assert owners.find(exited, live) == {}


async def test_a_detached_process_is_found_by_its_marker(tmp_path: Path) -> None:
    key = ProcessKey("i-1", 2, 1)
    marks = {MARK_DIR: str(tmp_path), MARK_INSTANCE: "i-1", MARK_EPOCH: "2", MARK_RANK: "1"}
    async with tree(marks) as leader:
        assert PidOwners(str(tmp_path)).find([leader.pid], [record(key, None)]) == {leader.pid: key}
        assert PidOwners("/elsewhere").find([leader.pid], [record(key, None)]) == {leader.pid: None}
