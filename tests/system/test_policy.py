"""A utilization policy on real processes: an idle deployment is stopped, and a busy one runs on."""

from support.processes.cluster import Cluster
from support.processes.policies import IDLE_POLICY, SAMPLING, PolicyWatch


async def test_an_idle_deployment_is_stopped_and_a_busy_one_is_not(cluster: Cluster) -> None:
    watch = PolicyWatch(cluster)
    await cluster.start_controller(**SAMPLING)
    await cluster.start_agent("host", gpus=2)
    await watch.put("stop-idle", default=True, **IDLE_POLICY)
    await watch.idle("unused")
    await watch.idle("busy", 95)
    (unused,) = await watch.serving("unused")
    (busy,) = await watch.serving("busy")

    event = await watch.only_event("policy_stop", "unused", 60)
    await watch.check_not_early(event, [unused])
    watch.check_evidence(event, [unused], "host")
    await cluster.until(lambda: cluster.phase_is("unused", "stopped"), "unused is stopped")
    await watch.untouched(["busy"])
    assert await watch.serving("busy") == [busy]
    assert list(cluster.engines()) == [busy.name]
    await cluster.audit()
