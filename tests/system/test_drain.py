"""A drained host is emptied without waiting for a timer, and its instances run elsewhere."""

from support.processes.cluster import Cluster


async def test_drain_moves_what_runs_there(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    await cluster.apply("moves", resources={"gpus": 1}, drain_time="2s")
    await cluster.running("moves")
    await cluster.start_agent("h2", gpus=2)
    await cluster.post("/workers/h1/drain")

    async def moved() -> bool:
        found = await cluster.instances("moves")
        return [i["status"]["worker"] for i in found] == ["h2"] and found[0]["status"]["phase"] == "running"

    assert await cluster.until(moved, "it runs on h2", 15) < 15

    async def drained() -> bool:
        return (await cluster.get("/workers/h1"))["status"]["state"] == "drained"

    await cluster.until(drained, "h1 is drained")
    await cluster.apply("more", replicas=2, resources={"gpus": 1})
    await cluster.until(lambda: cluster.phase_is("more", "degraded"), "one of two fits")
    await cluster.post("/workers/h1/uncordon")
    await cluster.running("more", 10)
    await cluster.audit()
