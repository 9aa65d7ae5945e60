"""A small storm of applies and deletes over a real controller; `make bench-storm` is the large one, with its limits."""

import asyncio
import time

import pytest

from support.processes.cluster import Cluster
from support.processes.proc_watch import ProcWatch
from support.processes.storm import Storm, controller_rss_mib, left_rows, nothing_left, pool_size, read_counted

SIZE = 60
# Generous: other tests may use the cores meanwhile. The bench checks the real limits.
GONE_S = 1.5
RUNS_S = 15.0
CANCEL_P99_S = 1.0


@pytest.mark.cases
async def test_a_storm_leaves_nothing(cluster: Cluster) -> None:
    await cluster.start_controller()
    for name in ("host-1", "host-2"):
        await cluster.start_agent(name)
    storm = Storm(cluster, size=SIZE)
    async with ProcWatch(cluster.processes["controller"].pid, cluster.folder / "sightings") as watch:
        last_answer = await storm.blow(hold_s=2.5)
        await asyncio.sleep(GONE_S)
        quiet_until = time.monotonic()
        await cluster.apply("after", args=storm.slow_args(0.2))
        await cluster.running("after", RUNS_S)
    seen, counted = watch.sightings(), await read_counted(cluster)
    assert seen.lasted_s(last_answer, quiet_until) < GONE_S
    assert seen.peak == pool_size()
    assert counted.in_flight == 0
    assert counted.started == 2 * SIZE + 1
    assert counted.balanced, counted
    assert counted.ended["cancelled"] > SIZE
    assert counted.cancel_quantile_s(0.99) <= CANCEL_P99_S, counted.cancel_buckets
    assert controller_rss_mib(cluster) < 400

    await cluster.delete("after")
    await cluster.until(lambda: nothing_left(cluster), "nothing is left", 60)
    assert await left_rows(cluster) == {}
    await cluster.audit()


@pytest.mark.cases
async def test_a_quick_one_is_not_held_up_by_slow_ones(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("host")
    storm = Storm(cluster, size=0)
    slow = [f"slow-{n}" for n in range(30)]
    await storm.apply_slow(slow, seconds=600)
    await cluster.apply("quick", args=storm.slow_args(0.1))
    await cluster.running("quick", 60)  # on a busy machine; behind the slow ones it would take 600 s
    phases = [i["status"]["phase"] for i in await cluster.instances() if i["spec"]["deployment"] != "quick"]
    assert len(phases) == len(slow)
    assert set(phases) <= {"pending", "analyzing"}
    await storm.delete([*slow, "quick"])
    await cluster.until(lambda: nothing_left(cluster), "nothing is left", 60)
