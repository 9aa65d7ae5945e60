"""The cost of utilization policies: 5,000 instances on 8,000 GPUs of 1,000 hosts, sampled every 10 s, one controller.

The hosts speak the agents' protocol but run nothing (many_hosts.py). The bench counts the
CPU seconds of the controller's process and of PostgreSQL over three steady stretches of one run: without samples (the
baseline), with samples and no policy (ingest and history), and with a default policy over all (evaluation). Half of
the instances are busy, half are idle over all of the window, which costs most.

The bench writes their past samples before the policy comes, so that its window is full at once. It exits with 1 where
ingest and evaluation together take more than a quarter of one core.

    make bench-policy           (or: PYTHONPATH=tests python bench/policy.py --seconds 60)
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from controller.decide.policies.idle_verdict import judge
from controller.domain.telemetry.series import MeanSeries, Series
from controller.domain.telemetry.utilization import GpuUse, InstanceUse
from controller.store.embedded.layout import Layout
from meter import Meter
from schemas.manifest.policy import UtilizationPolicy
from support.processes.cluster import Cluster
from support.processes.many_hosts import BUSY, LOW, ManyHosts

PERIOD_S = 10.0
WINDOW_S = 600
SETTLE_S = 20.0
AIM = 0.25  # of one core
APPLIES_AT_ONCE = 20
LIMIT_S = 600.0
# GPUs of an instance, and the number of such instances in 100: together they hold 160 GPUs.
SHAPES = ((1, 60), (2, 30), (4, 10))
POLICY = {"default": True, "min_gpu_utilization": 50, "time_window": WINDOW_S, "dry_run": True}


@dataclass(frozen=True)
class Stretch:
    """A minute of one stretch: CPU seconds, rows of samples written per second, memory in MiB."""

    controller: float
    postgres: float
    rows: float
    controller_mib: float
    postgres_mib: float


class Bench:
    """One run."""

    def __init__(self, cluster: Cluster, hosts: ManyHosts, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.hosts = hosts
        self.options = options
        self.meter = Meter(psutil.Process(cluster.processes["controller"].pid), hosts.pids)

    async def rows(self, query: str, *args: Any) -> list[Any]:
        connection = await asyncpg.connect(Layout(self.cluster.data_dir).url("postgresql"), command_timeout=LIMIT_S)
        try:
            return list(await connection.fetch(query, *args))
        finally:
            await connection.close()

    async def count(self, query: str) -> int:
        return int((await self.rows(query))[0][0])

    async def until(self, query: str, wanted: int, what: str) -> float:
        began = time.monotonic()
        while (count := await self.count(query)) < wanted:
            if time.monotonic() - began > LIMIT_S:
                raise AssertionError(f"{what}: {count} of {wanted} after {LIMIT_S:g} s")
            await asyncio.sleep(1)
        return time.monotonic() - began

    async def fill(self) -> None:
        await self.hosts.add(self.cluster, self.options.hosts)
        await self.until("select count(*) from workers where phase = 'ready'", self.options.hosts, "hosts")
        limit = asyncio.Semaphore(APPLIES_AT_ONCE)

        async def apply(name: str, gpus: int) -> None:
            async with limit:
                await self.cluster.apply(name, replicas=self.options.replicas, resources={"gpus": gpus})

        began, total = time.monotonic(), 0
        for gpus, share in reversed(SHAPES):  # the largest first, so that each finds a host with enough GPUs
            count = self.options.instances * share // 100 // self.options.replicas
            await asyncio.gather(*(apply(f"d{gpus}-{n}", gpus) for n in range(count)))
            total += count * self.options.replicas
            await self.until(_RUNNING, total, "instances")
        gpus = await self.count("select count(*) from claims c join devices d on d.uuid = c.device and d.kind = 'gpu'")
        took = time.monotonic() - began
        print(
            f"{total // self.options.replicas} deployments, {total} instances run on {gpus} GPUs, after {took:.0f} s",
            flush=True,
        )

    async def write_past(self) -> None:
        """Writes samples of more than a window, and dates the instances back."""
        await self.rows(_PAST, int(PERIOD_S), WINDOW_S + 120, LOW + 1, BUSY + 5)
        await self.rows("update instances set running_since = now() - interval '2 h' where running_since is not null")
        await self.rows("vacuum analyze")

    async def stretch(self, what: str) -> Stretch:
        await asyncio.sleep(SETTLE_S)
        rows, before, began = await self.count(_SAMPLES), self.meter.cpu_s(), time.monotonic()
        await asyncio.sleep(self.options.seconds)
        after, took = self.meter.cpu_s(), time.monotonic() - began
        written = (await self.count(_SAMPLES) - rows) / took
        controller, postgres, hosts = ((b - a) / took * 60 for a, b in zip(before, after, strict=True))
        rss, pss = self.meter.memory_mib()
        print(
            f"{what}: CPU seconds per minute: controller {controller:.2f}, PostgreSQL {postgres:.2f}"
            f" (the hosts' process {hosts:.1f}); {written:.0f} samples written per second;"
            f" memory: controller {rss:.0f} MiB, PostgreSQL {pss:.0f} MiB",
            flush=True,
        )
        return Stretch(controller, postgres, written, rss, pss)

    async def judge_all(self, instances: int) -> None:
        before, began = self.meter.cpu_s(), time.monotonic()
        status, answer = await self.cluster.call("PUT", "/policies/stop-idle", POLICY)
        assert status in (200, 201), answer
        low = await self.count(_IDLE_WANTED.format(low=LOW + 1))
        await self.until("select count(*) from policy_verdicts where verdict <> 'unknown'", instances, "verdicts")
        await self.until("select count(*) from policy_verdicts where verdict = 'idle'", low, "idle ones")
        used = [b - a for a, b in zip(before, self.meter.cpu_s(), strict=True)]
        print(
            f"first verdicts of {instances} instances ({low} of them idle) after {time.monotonic() - began:.1f} s,"
            f" with a past of {WINDOW_S} s read: CPU controller {used[0]:.1f} s, PostgreSQL {used[1]:.1f} s",
            flush=True,
        )

    async def run(self) -> bool:
        await self.fill()
        await self.rows("vacuum analyze")  # else the baseline includes the database's work after the fill
        instances = await self.count(_RUNNING)
        baseline = await self.stretch("baseline, no samples")
        await self.hosts.send(sampling=True)
        ingest = await self.stretch("samples, no policy")
        await self.write_past()
        await self.judge_all(instances)
        policies = await self.stretch("samples and policy")
        evaluated = await self.rows(
            "select verdict, count(*) from policy_verdicts group by verdict order by verdict",
        )
        print(f"verdicts: {', '.join(f'{row[0]} {row[1]}' for row in evaluated)}")
        return print_cost(baseline, ingest, policies)


_RUNNING = "select count(*) from instances where phase = 'running' and running_since is not null"
_SAMPLES = "select count(*) from samples"
_IDLE_WANTED = """
    select count(distinct c.instance_id) from claims c join samples s on s.device = c.device where s.max <= {low}"""
# Rows in the past send no hint: only a reader of the past finds them.
_PAST = """
    insert into samples (at, device, worker_id, seq, period_s, mean, max, used_mib, processes, tx)
    select s.at - n * $1::int * interval '1 second', s.device, s.worker_id, s.seq - n * 1000, s.period_s, s.mean, s.max,
           s.used_mib, s.processes, '3'::xid8
      from (select distinct on (device) * from samples where max in ($3::real, $4::real) order by device, at) s,
           generate_series(1, $2::int / $1) n"""


def print_cost(baseline: Stretch, ingest: Stretch, policies: Stretch) -> bool:
    steps = (("ingest and history", baseline, ingest), ("evaluation", ingest, policies), ("in all", baseline, policies))
    for what, before, after in steps:
        controller, postgres = after.controller - before.controller, after.postgres - before.postgres
        print(
            f"{what}: CPU seconds per minute: controller {controller:.2f}, PostgreSQL {postgres:.2f},"
            f" together {controller + postgres:.2f}"
        )
    share = (policies.controller + policies.postgres - baseline.controller - baseline.postgres) / 60
    kept = share <= AIM
    print(
        "rings of samples, and other memory for watched instances: "
        f"{policies.controller_mib - ingest.controller_mib:.0f} MiB"
    )
    print(f"{'PASS' if kept else 'FAIL'}: {share:.1%} of one core in all; the aim is at most {AIM:.0%}")
    return kept


def print_modes() -> None:
    """Prints the cost of a verdict over a day of eight GPUs, by `gpus`, and the ratio of `mean` to `all`."""
    day_s, gpus = 86_400, []
    for n in range(8):
        series = Series()
        series.extend((k * PERIOD_S, PERIOD_S, 5.0, 5.0, PERIOD_S) for k in range(int(day_s / PERIOD_S) + 30))
        gpus.append(GpuUse(f"GPU-{n}", "w", series))
    now = float(gpus[0].series.at[-1])
    use = InstanceUse("running", -1.0, tuple(gpus), mean=MeanSeries([gpu.series for gpu in gpus]))
    cost: dict[str, float] = {}
    for mode in ("all", "mean"):
        fields = {"min_gpu_utilization": 50, "time_window": day_s, "gpus": mode, "ignore_requests": True}
        rule = UtilizationPolicy.model_validate(fields)
        cost[mode] = float("inf")
        for _ in range(30):
            now += PERIOD_S
            for gpu in gpus:
                gpu.series.put(now, PERIOD_S, 5.0, 5.0)
            began = time.perf_counter()
            judge(rule, use, now)
            cost[mode] = min(cost[mode], time.perf_counter() - began)
    print(
        f"one verdict over 24 h of 8 GPUs: all {cost['all'] * 1e3:.2f} ms, mean {cost['mean'] * 1e3:.2f} ms,"
        f" ratio {cost['mean'] / cost['all']:.2f}",
        flush=True,
    )


async def run(options: argparse.Namespace, folder: Path) -> bool:
    cluster = Cluster(folder)
    hosts: ManyHosts | None = None
    try:
        await cluster.start_controller(GPUWARD_LOG_LEVEL="warning")
        hosts = await ManyHosts.start(cluster.url, "synthetic", str(PERIOD_S))
        return await Bench(cluster, hosts, options).run()
    finally:
        if hosts is not None:
            await hosts.aclose()
        await cluster.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000, help="of eight GPUs each")
    parser.add_argument("--instances", type=int, default=5000, help="a multiple of 100")
    parser.add_argument("--replicas", type=int, default=2, help="instances of each deployment")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each steady stretch")
    options = parser.parse_args()
    print(f"$ {shlex.join(sys.argv)}   ({psutil.cpu_count()} cores, {len(os.sched_getaffinity(0))} usable)", flush=True)
    print_modes()
    with tempfile.TemporaryDirectory(prefix="gpuward-bench-") as folder:
        Path(folder).chmod(0o711)
        kept = asyncio.run(run(options, Path(folder)))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
