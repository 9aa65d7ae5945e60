"""Whole GPUs and shared memory never meet on one GPU, across a crash too."""

import pytest

from support.processes.cluster import Cluster


async def gpus_of(cluster: Cluster, *deployments: str) -> list[str]:
    found: list[str] = []
    for name in deployments:
        for instance in await cluster.instances(name):
            found += instance["status"]["gpus"]
    return found


@pytest.mark.cases
async def test_two_whole_two_by_memory_a_crash_and_four_whole(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("host", gpus=8, memory="40GiB")
    await cluster.apply("whole", replicas=2, resources={"gpus": 1})
    await cluster.running("whole")
    await cluster.apply("shared", replicas=2, resources={"gpus": 1, "gpu_memory": "36GiB"})
    await cluster.running("shared")
    pids = {name: process.pid for name, process in cluster.engines().items()}
    assert len(pids) == 4

    cluster.kill("controller")
    await cluster.start_controller()
    await cluster.apply("more", replicas=4, resources={"gpus": 1})
    await cluster.running("more")
    used = await gpus_of(cluster, "whole", "shared", "more")
    assert len(used) == len(set(used)) == 8
    assert {n: p.pid for n, p in cluster.engines().items() if n in pids} == pids
    await cluster.audit()

    await cluster.apply("ninth", resources={"gpus": 1})

    async def waits_with_a_reason() -> bool:
        (only,) = await cluster.instances("ninth") or [{"status": {"reason": ""}}]
        return only["status"]["reason"] in ("exclusive_conflict", "need_gt_free")

    await cluster.until(waits_with_a_reason, "the ninth is pending with a reason")
    (waiting,) = await cluster.instances("ninth")
    assert waiting["status"]["phase"] == "pending"
    assert waiting["status"]["explain"]["workers"] == 1
    assert waiting["status"]["gpus"] == []

    await cluster.post("/deployments/whole/scale", {"replicas": 1})
    await cluster.running("ninth")
    used = await gpus_of(cluster, "whole", "shared", "more", "ninth")
    assert len(used) == len(set(used)) == 8
    await cluster.audit()
    for name in ("whole", "shared", "more", "ninth"):
        await cluster.delete(name)
    for name in ("whole", "shared", "more", "ninth"):
        await cluster.gone(name)
    await cluster.until(lambda: not cluster.engines(), "no engine is left")
    free = [g["status"]["free_mib"] for g in (await cluster.get("/gpus"))["items"]]
    assert free == [40 * 1024] * 8
    await cluster.audit()
