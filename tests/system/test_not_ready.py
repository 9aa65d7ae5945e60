"""A host that is not ready is never used, even if a user chose it. Once it is back, pending instances start."""

import signal
from typing import Any

from support.processes.cluster import Cluster

HOSTS = ("h1", "h2", "h3")


async def test_a_silent_host_is_never_used(cluster: Cluster) -> None:
    await cluster.start_controller()
    for name in HOSTS:
        await cluster.start_agent(name, gpus=2)
    cluster.signal("h3", signal.SIGSTOP)
    await cluster.until(lambda: cluster.worker_is("h3", "unreachable"), "h3 is unreachable", 40)

    one = {"resources": {"gpus": 1}}
    silent_gpu = next(g["name"] for g in (await cluster.get("/gpus"))["items"] if g["status"]["worker"] == "h3")
    spanning: dict[str, Any] = {"resources": {"gpus": 2, "max_workers": 2}}
    await cluster.apply("all-of", **spanning, placement={"workers": ["h1", "h3"], "all_of": True})
    await cluster.apply("all-gpus", **spanning, placement={"gpus": ["h1:0", silent_gpu]})
    await cluster.apply("alone", **one, placement={"workers": ["h3"]})
    await cluster.apply("by-gpu", **one, placement={"gpus": [silent_gpu]})
    await cluster.apply("pool", **one, placement={"workers": ["h3", "h2"]})
    await cluster.apply("gpu-pool", **one, placement={"gpus": [silent_gpu, "h1:0", "h1:1"]})
    await cluster.apply("automatic", replicas=2, **one)
    for name in ("pool", "gpu-pool", "automatic"):
        await cluster.running(name)

    async def reason(name: str) -> str:
        (only,) = await cluster.instances(name) or [{"status": {"reason": ""}}]
        return str(only["status"]["reason"])

    async def judged(name: str) -> bool:
        return await reason(name) != ""

    for name, expected in {
        "all-of": "not_all_selected_ready",
        "all-gpus": "not_all_selected_ready",
        "alone": "not_ready",
        "by-gpu": "not_ready",
    }.items():
        await cluster.until(lambda name=name: judged(name), f"{name} is judged")
        assert await reason(name) == expected
        assert await cluster.phases(name) == ["pending"]
    on_h3 = [i for i in await cluster.instances() if "h3" in i["status"]["workers"]]
    assert on_h3 == []
    await cluster.audit()

    assert {i["status"]["worker"] for i in await cluster.instances("pool")} == {"h2"}
    assert {i["status"]["worker"] for i in await cluster.instances("gpu-pool")} == {"h1"}

    for name in ("automatic", "gpu-pool", "by-gpu", "all-gpus"):
        await cluster.post(f"/deployments/{name}/scale", {"replicas": 0})
        await cluster.until(lambda name=name: cluster.phase_is(name, "stopped"), f"{name} is stopped")
    cluster.signal("h3", signal.SIGCONT)
    for name in ("all-of", "alone"):
        assert await cluster.running(name, 5.0) <= 5.0
    await cluster.audit()
