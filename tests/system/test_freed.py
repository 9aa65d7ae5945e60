"""Capacity is free once its process is proven gone, not before, and pending instances get it within a second."""

from datetime import datetime

import psutil
import pytest

from support.processes.cluster import Cluster

SLOW_S = 8


@pytest.mark.cases
async def test_a_slow_stop_keeps_its_gpus_and_the_next_in_the_queue_follows_at_once(cluster: Cluster) -> None:
    """N3: nothing is placed there before the agent reports the end. N4: then by priority and age, at once."""
    await cluster.start_controller()
    await cluster.start_agent("w", gpus=2)
    await cluster.apply("slow", resources={"gpus": 2}, args={"ignore_sigterm": True}, drain_time=f"{SLOW_S}s")
    await cluster.running("slow")
    (slow,) = await cluster.instances("slow")
    process = cluster.engines()[slow["name"]]
    for name, priority in (("low", 10), ("older", 50), ("younger", 50)):
        await cluster.apply(name, priority=priority, resources={"gpus": 1})

        async def waits(name: str = name) -> bool:
            return await cluster.phases(name) == ["pending"]

        await cluster.until(waits, f"{name} waits")
    await cluster.delete("slow")

    looked = 0
    while lives(process):
        held = [i["spec"]["deployment"] for i in await cluster.instances() if i["status"]["claims"]]
        if lives(process):  # so it ran when they were read
            assert held == ["slow"]
            looked += 1
    assert looked > SLOW_S
    for name in ("older", "younger"):
        await cluster.running(name)
    assert await cluster.phases("low") == ["pending"]
    events = (await cluster.get("/events?limit=200"))["items"]
    gone = min(at(e) for e in events if e["reason"] == "removed" and f"instance:{slow['name']}" in e["objects"])
    placed = [at(e) for e in events if e["reason"] == "scheduled" and at(e) >= gone]
    assert len(placed) == 2
    assert max((moment - gone).total_seconds() for moment in placed) < 1.0
    await cluster.audit()


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def at(event: dict) -> datetime:
    return datetime.fromisoformat(event["at"])
