"""Which engine a pid belongs to: real processes with children."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.records import Key, ProcessRecord
from agent.sampling.owners import Owners

LIMIT_S = 20.0
# A child in the same session, one in its own session and without our environment, and that one's child.
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
            while len(leader.children(recursive=True)) < 3:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)
        yield leader
    finally:
        for child in leader.children(recursive=True):
            child.kill()
        process.kill()
        await process.wait()


def record(key: Key, pid: int | None) -> ProcessRecord:
    return ProcessRecord(instance=key.instance, epoch=key.epoch, rank=key.rank, state="running", boot_id="b", pid=pid)


async def test_the_whole_tree_belongs_to_its_process_alone(tmp_path: Path) -> None:
    ours, other = Key("i-1", 2, 0), Key("i-2", 1, 0)
    owners = Owners(str(tmp_path))
    async with tree({}) as leader, tree({}) as neighbour, tree({}) as stranger:
        live = [record(ours, leader.pid), record(other, neighbour.pid)]
        mine = {p.pid for p in (leader, *leader.children(recursive=True))}
        theirs = {p.pid for p in (neighbour, *neighbour.children(recursive=True))}
        foreign = {p.pid for p in (stranger, *stranger.children(recursive=True))} | {os.getpid()}
        expected = dict.fromkeys(mine, ours) | dict.fromkeys(theirs, other) | dict.fromkeys(foreign)
        everybody = {*expected, 2**22 + 1}  # and one that has ended
        assert owners.find(everybody, live) == expected
        assert owners.find(everybody, live) == expected  # from memory
    ended = {leader.pid, neighbour.pid}  # since then: the driver still reports them
    assert owners.find(ended, live) == {leader.pid: ours, neighbour.pid: other}
    assert owners.find(ended, live) == {}


async def test_one_that_left_its_parents_is_known_by_its_marker(tmp_path: Path) -> None:
    key = Key("i-1", 2, 1)
    marks = {MARK_DIR: str(tmp_path), MARK_INSTANCE: "i-1", MARK_EPOCH: "2", MARK_RANK: "1"}
    async with tree(marks) as leader:
        assert Owners(str(tmp_path)).find([leader.pid], [record(key, None)]) == {leader.pid: key}
        assert Owners("/elsewhere").find([leader.pid], [record(key, None)]) == {leader.pid: None}
