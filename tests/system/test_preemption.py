"""Preemption on real processes: the victim drains, the preemptor runs there, and the pending one has a reason."""

from support.processes.cluster import Cluster


async def test_the_preemptor_runs_where_the_victim_ran_and_the_victim_is_requeued(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("w", gpus=2)
    await cluster.apply("low", priority=10, replicas=2, resources={"gpus": 1})
    await cluster.running("low")
    before = {i["name"]: i["created_at"] for i in await cluster.instances("low")}

    await cluster.apply("meek", priority=50, resources={"gpus": 1})
    await cluster.apply("high", priority=90, preempt=True, resources={"gpus": 1})
    await cluster.running("high")
    low = await cluster.instances("low")
    (heir,) = [i for i in low if i["name"] not in before]
    (victim,) = before.keys() - {i["name"] for i in low}
    assert heir["created_at"] == before[victim]
    assert heir["status"]["phase"] == "pending"
    assert [i["status"]["phase"] for i in low if i["name"] in before] == ["running"]
    assert await cluster.phases("meek") == ["pending"]
    events = (await cluster.get("/events?limit=200"))["items"]
    (pushed,) = [e for e in events if e["reason"] == "preempting"]
    assert pushed["evidence"]["leave"] == [{"instance": victim, "priority": 10, "gpus": 1}]
    assert [e["evidence"]["reason"] for e in events if e["reason"] == "stopping"] == ["preempted"]
    await cluster.audit()

    await cluster.delete("high")
    await cluster.running("meek")  # its priority is higher, though it is younger
    assert "pending" in await cluster.phases("low")
    await cluster.delete("meek")
    await cluster.running("low")
    await cluster.audit()
