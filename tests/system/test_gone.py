"""A deleted deployment stops computing at once, leaves nothing, and its name is free at once."""

import asyncio
import os
import time
from pathlib import Path

import psutil

from support.processes.cluster import Cluster


def children(pid: int) -> list[psutil.Process]:
    """Computation processes of the controller, by their command line."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "child_main" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def alive(pid: int) -> bool:
    """Whether it is in /proc; a zombie does not compute, but counts until it is reaped."""
    return Path(f"/proc/{pid}").exists()


async def test_deleted_while_it_is_analyzed(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("host", gpus=2)
    slow = {"args": {"analysis_seconds": 2, "memory": "10GiB"}}
    pid = cluster.processes["controller"].pid
    took: list[float] = []
    for _ in range(5):
        await cluster.apply("slow", **slow)
        await cluster.until(lambda: children(pid), "the analysis runs")
        computing = [child.pid for child in children(pid)]
        assert await cluster.phases("slow") in (["analyzing"], ["pending"])
        groups = {os.getpgid(child) for child in computing}
        await cluster.delete("slow")
        committed = time.monotonic()  # no earlier than the commit
        while any(alive(child) for child in computing):
            assert time.monotonic() - committed < 5
            await asyncio.sleep(0.001)
        took.append(time.monotonic() - committed)
        assert not [p for p in psutil.pids() if _group(p) in groups]
        await cluster.gone("slow", 5)
    assert sorted(took)[len(took) // 2] <= 0.1, took
    assert await cluster.instances() == []
    assert all(g["status"]["claims"] == [] for g in (await cluster.get("/gpus"))["items"])
    assert cluster.engines() == {}

    await cluster.apply("slow", **slow)
    await cluster.until(lambda: children(pid), "the analysis runs")
    old = (await cluster.get("/deployments/slow"))["uid"]
    await cluster.delete("slow")
    again = await cluster.apply("slow", args={"analysis_seconds": 0.1, "memory": "10GiB"})
    assert again["uid"] != old
    await cluster.running("slow")
    await cluster.audit()


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
