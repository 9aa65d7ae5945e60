"""Time that was not read is not known, on real processes: a frozen agent and a killed one leave gaps (U45, U46)."""

import asyncio
import signal
from datetime import datetime

import pytest

from support.processes.cluster import Cluster
from support.processes.faults import SHORT, all_of
from support.processes.policies import IDLE_POLICY, SAMPLING, WINDOW_S, PolicyWatch, Serving, seconds

pytestmark = pytest.mark.cases

AWAY_S = 12.0
AFTER_S = 10.0  # how long it has run before the gap
NEEDED_S = WINDOW_S * 0.8
SLACK_S = 3.0  # what the agent had not sent yet is lost with it, or read again a moment later
ENV = {**SHORT, **SAMPLING, "GPUWARD_UNREACHABLE_AFTER_S": "60", "GPUWARD_LOST_AFTER_S": "600"}


async def test_an_agent_that_is_frozen_or_killed_leaves_a_gap(cluster: Cluster, watch: PolicyWatch) -> None:
    await cluster.start_controller(**ENV)
    for host in ("frozen", "killed"):
        await cluster.start_agent(host)
    await watch.put("stop-idle", default=True, **IDLE_POLICY)
    for host in ("frozen", "killed"):
        await watch.idle(f"idle-{host}", 0, placement={"workers": [host]})
    served = {host: (await watch.serving(f"idle-{host}"))[0] for host in ("frozen", "killed")}
    await watch.pass_until(max(one.since for one in served.values()) + seconds(AFTER_S))
    cluster.processes["frozen"].send_signal(signal.SIGSTOP)
    cluster.kill("killed")
    try:
        await asyncio.sleep(AWAY_S)
        for host in served:
            await watch.untouched([f"idle-{host}"])
    finally:
        cluster.processes["frozen"].send_signal(signal.SIGCONT)
    back_at = await watch.now()
    await cluster.start_agent("killed", ready=False)
    await all_of(*(_stopped_late(watch, host, one, back_at) for host, one in served.items()))


async def _stopped_late(watch: PolicyWatch, host: str, served: Serving, back_at: datetime) -> None:
    """It is stopped once enough of a window has been read, and its evidence shows what was not."""
    event = await watch.only_event("policy_stop", f"idle-{host}", 90.0)
    assert event["at"] >= back_at + seconds(NEEDED_S - SLACK_S), event
    await watch.check_not_early(event, [served])
    (gpu,) = event["evidence"]["gpus"]
    assert 0.8 <= gpu["coverage"] < 1, gpu
    assert gpu["gaps"], gpu
    assert None in gpu["series"], gpu
    assert "not read from" in event["message"]
    assert "UTC" in event["message"]
