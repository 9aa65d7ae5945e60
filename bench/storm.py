"""A storm of applies and deletes against a real controller with its durable database and two simulated hosts.

Each storm applies and deletes many deployments with distinct inputs, whose analyses take two seconds, twice. Then one
more is applied, which must not be affected. Another process reads /proc every ten milliseconds. Then a quick
deployment is applied during many slow analyses, and ten more storms measure retained memory. Each check is printed with
its figure. The bench exits with 1 where one fails.

    make bench-storm            (or: PYTHONPATH=tests python bench/storm.py --size 300 --storms 10 --slow 100)
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import psutil

from support.processes.cluster import Cluster
from support.processes.proc_watch import ProcWatch
from support.processes.storm import (
    Storm,
    controller_rss_mib,
    late_cancels,
    left_rows,
    nothing_left,
    pool_size,
    read_counted,
)

HOLD_S = 2.5  # from a storm's applies to its deletes, in which the first engines start
QUIET_S = 0.3  # between a storm's last DELETE and the next apply; all processes end early in it
REST_S = 5.0  # before memory is read
GONE_LIMIT_S = 120.0

GONE_WITHIN_S = 0.150
CANCEL_P99_S = 0.1
LAST_RUNS_WITHIN_S = 3.0
QUICK_RUNS_WITHIN_S = 5.0
MEMORY_RATIO = 1.10


class Verdict:
    """Prints checks. `passed`: all have passed."""

    def __init__(self) -> None:
        self.passed = True

    def check(self, what: str, figure: str, *, ok: bool) -> None:
        self.passed = self.passed and ok
        print(f"{'pass' if ok else 'FAIL'}  {what}: {figure}", flush=True)


async def one_storm(cluster: Cluster, storm: Storm, verdict: Verdict) -> None:
    """A storm under watch, then one more deployment."""
    file = cluster.folder / "sightings"
    async with ProcWatch(cluster.processes["controller"].pid, file) as watch:
        began = time.monotonic()
        last_answer = await storm.blow(hold_s=HOLD_S)
        took = last_answer - began
        await asyncio.sleep(QUIET_S)
        quiet_until = time.monotonic()
        await cluster.apply("after", args=storm.slow_args())
        after_s = await cluster.running("after")
        counted = await read_counted(cluster)
    sightings, size = watch.sightings(), pool_size()
    pause_ms = sightings.longest_pause_s * 1000
    print(f"      the storm took {took:.1f} s; the longest pause between reads was {pause_ms:.0f} ms")
    gone = sightings.lasted_s(last_answer, quiet_until)
    verdict.check(
        f"no computation's process {GONE_WITHIN_S * 1000:.0f} ms after the last DELETE",
        f"gone after {gone * 1000:.0f} ms",
        ok=gone <= GONE_WITHIN_S,
    )
    verdict.check("peak in flight is the pool's size", f"{sightings.peak} of {size}", ok=sightings.peak == size)
    verdict.check("computations in flight at rest", f"{counted.in_flight}", ok=counted.in_flight == 0)
    ended = ", ".join(f"{outcome} {n}" for outcome, n in sorted(counted.ended.items()))
    verdict.check("started = completed + cancelled + failed", f"{counted.started} = {ended}", ok=counted.balanced)
    p99 = counted.cancel_quantile_s(0.99)
    verdict.check(
        f"p99 from a delete's commit to its computation gone at most {CANCEL_P99_S} s",
        f"at most {p99} s, p50 at most {counted.cancel_quantile_s(0.5)} s,"
        f" {counted.cancelled_within(CANCEL_P99_S):.1%} within {CANCEL_P99_S} s",
        ok=p99 <= CANCEL_P99_S,
    )
    for late in late_cancels(cluster):
        print(f"      late: {late}")
    verdict.check(
        f"the one applied afterwards runs within {LAST_RUNS_WITHIN_S} s",
        f"{after_s:.2f} s, of which its analysis takes 2 s",
        ok=after_s <= LAST_RUNS_WITHIN_S,
    )
    await cluster.delete("after")


async def nothing_is_left(cluster: Cluster, verdict: Verdict) -> None:
    took = await cluster.until(lambda: nothing_left(cluster), "nothing is left", GONE_LIMIT_S)
    rows = await left_rows(cluster)
    figure = f"gone {took:.1f} s later; rows {rows or 'none'}, engines {len(cluster.engines())}"
    verdict.check("no row, claim or process of a deleted deployment", figure, ok=not rows)
    audit = await cluster.get("/audit")
    verdict.check("audit", f"{len(audit['checked'])} invariants, violations {audit['violations']}", ok=audit["ok"])


async def quick_behind_slow(cluster: Cluster, storm: Storm, count: int, verdict: Verdict) -> None:
    """A quick deployment during `count` slow analyses."""
    slow = [f"slow-{n}" for n in range(count)]
    await storm.apply_slow(slow, seconds=600)
    await asyncio.sleep(1)
    await cluster.apply("quick", args=storm.slow_args(0.1))
    took = await cluster.running("quick")
    alive = [i for i in await cluster.instances() if i["status"]["phase"] in ("pending", "analyzing")]
    verdict.check(
        f"a quick one behind {count} slow analyses runs within {QUICK_RUNS_WITHIN_S} s",
        f"{took:.2f} s, {len(alive)} still analyzed",
        ok=took <= QUICK_RUNS_WITHIN_S and len(alive) == count,
    )
    await storm.delete([*slow, "quick"])


async def memory_over(cluster: Cluster, storm: Storm, storms: int, verdict: Verdict) -> None:
    """The controller's resident memory at rest, before and after the storms."""
    await asyncio.sleep(REST_S)
    before = controller_rss_mib(cluster)
    for n in range(storms):
        await storm.blow(hold_s=HOLD_S)
        await cluster.until(lambda: nothing_left(cluster), "nothing is left", GONE_LIMIT_S)
        print(f"      storm {n + 1} of {storms}: {controller_rss_mib(cluster):.1f} MiB", flush=True)
    await asyncio.sleep(REST_S)
    after = controller_rss_mib(cluster)
    verdict.check(
        f"memory after {storms} storms within {MEMORY_RATIO - 1:.0%} of the memory after the first",
        f"{before:.1f} MiB before, {after:.1f} MiB after, ratio {after / before:.3f} (resident, at rest)",
        ok=after <= before * MEMORY_RATIO,
    )


async def run(options: argparse.Namespace, folder: Path) -> bool:
    cluster, verdict = Cluster(folder), Verdict()
    try:
        await cluster.start_controller(GPUWARD_LOG_FORMAT="json")
        for name in ("host-1", "host-2"):
            await cluster.start_agent(name)
        storm = Storm(cluster, size=options.size)
        await one_storm(cluster, storm, verdict)
        await nothing_is_left(cluster, verdict)
        await quick_behind_slow(cluster, storm, options.slow, verdict)
        await nothing_is_left(cluster, verdict)
        await memory_over(cluster, storm, options.storms, verdict)
        await nothing_is_left(cluster, verdict)
        counted = await read_counted(cluster)
        verdict.check(
            "computations over all storms",
            f"in flight {counted.in_flight}, started {counted.started} = {sum(counted.ended.values())} ended;"
            f" {counted.cancelled_within(CANCEL_P99_S):.2%} of cancels within {CANCEL_P99_S} s",
            ok=counted.in_flight == 0 and counted.balanced and counted.cancel_quantile_s(0.99) <= CANCEL_P99_S,
        )
    finally:
        await cluster.aclose()
    return verdict.passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=300, help="deployments in one storm")
    parser.add_argument("--storms", type=int, default=10, help="storms over which memory is watched")
    parser.add_argument("--slow", type=int, default=100, help="slow analyses during a quick deployment")
    options = parser.parse_args()
    print(f"$ {shlex.join(sys.argv)}   ({psutil.cpu_count()} cores, {len(os.sched_getaffinity(0))} usable)")
    with tempfile.TemporaryDirectory(prefix="gpuward-bench-") as folder:
        Path(folder).chmod(0o711)
        passed = asyncio.run(run(options, Path(folder)))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
