"""`start` runs what has ended again, and `restart` starts what runs once more."""

import asyncio

from support.processes.cluster import Cluster

TASK = {"engine": "custom", "restart": "never", "resources": {"gpus": 1}, "drain_time": "1s"}


async def names(cluster: Cluster, deployment: str) -> set[str]:
    return {i["name"] for i in await cluster.instances(deployment)}


async def test_start_runs_an_ended_task_again(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    for name, code in (("good", 0), ("bad", 3)):
        await cluster.apply(name, **TASK, command=["sh", "-c", f"sleep 1; exit {code}"])
    for name, phase in (("good", "succeeded"), ("bad", "failed")):
        await cluster.until(lambda name=name, phase=phase: cluster.phase_is(name, phase), f"{name} has {phase}")
        (before,) = await cluster.instances(name)
        revision = (await cluster.get(f"/deployments/{name}"))["status"]["revision"]
        await cluster.post(f"/deployments/{name}/start")

        async def again(name: str = name, before: str = before["name"], phase: str = phase) -> bool:
            found = await cluster.instances(name)
            return [i["status"]["phase"] for i in found] == [phase] and found[0]["name"] != before

        await cluster.until(again, f"{name} has run again")
        assert (await cluster.get(f"/deployments/{name}"))["status"]["revision"] == revision
    await cluster.audit()


async def test_start_leaves_a_running_task_alone(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    await cluster.apply("runs", **TASK, command=["sleep", "600"])
    await cluster.running("runs")
    before = await cluster.instances("runs")
    await cluster.post("/deployments/runs/start")
    await asyncio.sleep(1)
    after = await cluster.instances("runs")
    assert [(i["name"], i["status"]["epoch"]) for i in after] == [(i["name"], i["status"]["epoch"]) for i in before]


async def test_a_rolling_restart_serves_on(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=3)
    rollout = {"surge": 1, "unavailable": 0, "ready_for": "1s"}
    await cluster.apply(
        "serves", replicas=2, resources={"gpus": 1}, drain_time="1s", update="rolling", rollout=rollout,
        args={"load_seconds": 1},
    )  # fmt: skip
    await cluster.running("serves")
    before = await names(cluster, "serves")
    await cluster.post("/deployments/serves/restart")
    least = []

    async def replaced() -> bool:
        found = await cluster.instances("serves")
        least.append(sum(i["status"]["phase"] == "running" for i in found))
        return before.isdisjoint(i["name"] for i in found) and len(found) == 2 and least[-1] == 2

    await cluster.until(replaced, "both were replaced", 40)
    assert min(least) == 2
    view = await cluster.get("/deployments/serves")
    assert view["generation"] == 1
    await cluster.audit()


async def test_one_instance_is_restarted_and_one_in_backoff_is_tried_now(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=3)
    await cluster.apply("two", replicas=2, resources={"gpus": 1}, drain_time="1s")
    await cluster.running("two")
    first, second = sorted(await names(cluster, "two"))
    await cluster.post("/deployments/two/restart", {"instance": first})

    async def replaced() -> bool:
        now = await names(cluster, "two")
        return first not in now and len(now) == 2

    await cluster.until(replaced, "one was replaced")
    assert second in await names(cluster, "two")
    await cluster.apply("fails", engine="custom", command=["sh", "-c", "exit 1"], resources={"gpus": 1})

    async def waits() -> bool:
        found = await cluster.instances("fails")
        return [i["status"]["phase"] for i in found] == ["backoff"] and found[0]["status"]["restarts"] > 0

    await cluster.until(waits, "it waits out its back-off")
    (before,) = await cluster.instances("fails")
    await cluster.post("/deployments/fails/restart", {"instance": before["name"]})

    async def tried() -> bool:
        return (await cluster.instances("fails"))[0]["status"]["epoch"] > before["status"]["epoch"]

    assert await cluster.until(tried, "it is tried", 4) < 4


async def test_what_cannot_be_restarted_is_refused(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    await cluster.apply("one", resources={"gpus": 1}, drain_time="1s")
    await cluster.running("one")
    assert (await cluster.call("POST", "/deployments/one/restart", {"instance": "other"}))[0] == 404
    assert (await cluster.call("POST", "/deployments/none/restart"))[0] == 404
    await cluster.post("/deployments/one/stop")
    status, body = await cluster.call("POST", "/deployments/one/restart")
    assert (status, body["error"]["code"]) == (409, "nothing_to_restart")
    assert "gpuward start one" in body["error"]["message"]
