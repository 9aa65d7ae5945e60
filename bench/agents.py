"""The cost of idle agents for the controller: many simulated agents against a controller process.

The agents are real, in two processes: journal, inventory, proxy, WebSocket, and a heartbeat with the readings of eight
GPUs every five seconds. A real agent costs six times as much as the controller spends on it. So for larger fleets
doubles take their place (`--doubles`), which speak the same protocol without running anything, with samples of eight
GPUs. For each number of agents, after all have joined, the bench measures a steady stretch: the cost of controller,
gateway and PostgreSQL (% of one core), their memory, the age of the database's liveness rows, and the lag of the event
loop. Then it cuts the connections of all doubles at once and measures the time until the last is connected again. At
the end it prints a table, and extrapolates the cost of more agents from the slope.

    make bench-agents           (or: PYTHONPATH=tests python bench/agents.py --sizes 250 500 1000 --seconds 60)
    make bench-agents ARGS='--sizes --doubles 1000 5000'
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncpg
import psutil

from controller.store.embedded.layout import Layout
from meter import Meter, quantile
from support.processes.cluster import Cluster
from support.processes.many_hosts import ManyHosts

SETTLE_S = 15.0
SETTLE_LIMIT_S = 120.0  # all agents must have sent a heartbeat by then
REAL_PROCESSES = 2  # a thousand real agents need nearly a core when they rest, and more when they join
LOOK_S = 0.05
SAMPLE_S = 0.5
MORE = 5_000
PERIOD_S = 10.0  # of the doubles' samples: the default of real agents


@dataclass
class Samples:
    """Measurements over a steady period, in seconds."""

    write_lags: list[float] = field(default_factory=list)  # from a heartbeat's arrival to its row
    ages: list[float] = field(default_factory=list)  # of the rows, the heartbeat's period included
    answers: list[float] = field(default_factory=list)  # of /healthz
    loop_lags: list[float] = field(default_factory=list)  # each the worst of ten seconds


@dataclass(frozen=True)
class Cost:
    """CPU at one size, in % of one core."""

    kind: str
    agents: int
    joins_per_s: float
    controller: float
    gateway: float
    postgres: float
    agents_process: float
    controller_mib: float
    postgres_mib: float
    write_lag_s: float  # p99, from a heartbeat's arrival to its row
    loop_lag_s: float  # p99 of the worst of ten seconds
    herd_s: float | None = None  # from the cut of all connections until the last is back


def spread(values: list[float]) -> str:
    """Median and 99th percentile, in milliseconds."""
    return f"p50 {quantile(values, 0.5) * 1000:.0f} ms, p99 {quantile(values, 0.99) * 1000:.0f} ms"


@dataclass(frozen=True)
class Joins:
    """The cost for the controller of agents that join."""

    count: int
    took_s: float
    controller_s: float  # CPU, also for the agents that had joined before

    def without_rest_ms(self, rests: tuple[float, float]) -> float:
        """CPU for each, in ms, without that of the idle fleet: `rests`, in % of a core, before and after the joins."""
        return (self.controller_s - sum(rests) / 2 / 100 * self.took_s) / self.count * 1000


async def join(cluster: Cluster, hosts: ManyHosts, meter: Meter, count: int) -> Joins:
    """Adds agents and prints the cost of each."""
    before = meter.cpu_s()
    took = await hosts.add(cluster, count)
    controller, postgres, agents = ((b - a) / count * 1000 for a, b in zip(before, meter.cpu_s(), strict=True))
    print(
        f"{count} agents joined and connected in {took:.1f} s: {count / took:.0f} per second; CPU for each, with its"
        f" token: controller {controller:.1f} ms, PostgreSQL {postgres:.1f} ms, the agent itself {agents:.1f} ms",
        flush=True,
    )
    return Joins(count, took, controller * count / 1000)


async def watch_rows(connection: "asyncpg.Connection[asyncpg.Record]", samples: Samples) -> None:
    """Samples the age of the liveness rows, and the lag of each new write."""
    newest = await connection.fetchval("select max(last_seen) from worker_liveness")
    while True:
        began = time.monotonic()
        rows = await connection.fetch(
            """select extract(epoch from clock_timestamp() - last_seen)::float8 as age, last_seen > $1 as new, last_seen
                 from worker_liveness""",
            newest,
        )
        if any(row["new"] for row in rows):
            newest = max(row["last_seen"] for row in rows)
            samples.write_lags += [row["age"] for row in rows if row["new"]]
            samples.ages += [row["age"] for row in rows]
        await asyncio.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))


async def watch_health(cluster: Cluster, samples: Samples) -> None:
    """Samples the time of /healthz, which needs only the event loop, and the lag that it returns."""
    while True:
        began = time.monotonic()
        async with cluster.session.get("/healthz") as response:
            lag = (await response.json())["loop_lag_s"]
        samples.answers.append(time.monotonic() - began)
        samples.loop_lags.append(lag)
        await asyncio.sleep(SAMPLE_S)


async def count_present(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, int]:
    """The number of connected agents, and of those with a recent heartbeat."""
    connected, recent = await connection.fetchrow(
        "select count(*) filter (where connected), count(*) filter (where last_seen > now() - interval '15 s')"
        " from worker_liveness"
    )
    return connected, recent


async def settle(cluster: Cluster, agents: int) -> None:
    """Waits until all agents are connected with a recent heartbeat, and `SETTLE_S` longer."""
    connection = await asyncpg.connect(Layout(cluster.data_dir).url("postgresql"))
    began = time.monotonic()
    while (present := await count_present(connection)) != (agents, agents):
        assert time.monotonic() - began < SETTLE_LIMIT_S, f"of {agents} agents, {present} are connected and recent"
        await asyncio.sleep(SAMPLE_S)
    await connection.close()
    await asyncio.sleep(SETTLE_S)


async def observe(cluster: Cluster, meter: Meter, kind: str, agents: int, joins_per_s: float, seconds: float) -> Cost:
    """Measures a steady period and prints it."""
    samples = Samples()
    connection = await asyncpg.connect(Layout(cluster.data_dir).url("postgresql"))
    watchers = [
        asyncio.create_task(watch_rows(connection, samples)),
        asyncio.create_task(watch_health(cluster, samples)),
    ]
    gateway = cluster.gateway()
    before, passed, began = meter.cpu_s(), sum(gateway.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    after, took = meter.cpu_s(), time.monotonic() - began
    passing = (sum(gateway.cpu_times()[:2]) - passed) / took * 100
    for watcher in watchers:
        watcher.cancel()
    for result in await asyncio.gather(*watchers, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result
    known = await count_present(connection)
    await connection.close()
    assert known == (agents, agents), f"of {agents} agents, {known} are connected and recent"
    controller, postgres, theirs = ((b - a) / took * 100 for a, b in zip(before, after, strict=True))
    rss, pss = meter.memory_mib()
    print(
        f"{agents} {kind} over {took:.0f} s, % of one core: controller {controller:.1f}, gateway {passing:.1f},"
        f" PostgreSQL {postgres:.1f}, the agents themselves {theirs:.1f}\n"
        f"    memory: controller {rss:.0f} MiB, PostgreSQL {pss:.0f} MiB\n"
        f"    heartbeat to its row: {spread(samples.write_lags)};"
        f" age of the rows: {spread(samples.ages)}\n"
        f"    /healthz answers: {spread(samples.answers)};"
        f" worst loop lag in ten seconds: {spread(samples.loop_lags)}",
        flush=True,
    )
    return Cost(
        kind, agents, joins_per_s, controller, passing, postgres, theirs, rss, pss,
        quantile(samples.write_lags, 0.99), quantile(samples.loop_lags, 0.99),
    )  # fmt: skip


def table(costs: list[Cost]) -> None:
    print(
        "\n| agents | joins/s | controller | gateway | PostgreSQL | agents themselves | controller | PostgreSQL"
        " | heartbeat to row, p99 | loop lag, p99 | all back after a cut |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for c in costs:
        herd = "" if c.herd_s is None else f"{c.herd_s:.1f} s"
        print(
            f"| {c.agents:,} {c.kind} | {c.joins_per_s:.0f} | {c.controller:.0f} % | {c.gateway:.0f} %"
            f" | {c.postgres:.0f} % | {c.agents_process:.0f} % | {c.controller_mib:.0f} MiB | {c.postgres_mib:.0f} MiB"
            f" | {c.write_lag_s * 1000:.0f} ms | {c.loop_lag_s * 1000:.0f} ms | {herd} |"
        )


def extrapolate(costs: list[Cost]) -> None:
    """Prints what each further agent costs, and `MORE` of them."""
    if len(costs) < 2:
        return
    low, high = costs[0], costs[-1]
    more = high.agents - low.agents
    controller = (high.controller - low.controller) / more
    postgres = (high.postgres - low.postgres) / more
    print(
        f"slope from {low.agents} to {high.agents}: controller {controller * 1000:.1f}, PostgreSQL"
        f" {postgres * 1000:.1f} % of one core for each thousand agents; {MORE} would need"
        f" {low.controller + controller * (MORE - low.agents):.0f} % and"
        f" {low.postgres + postgres * (MORE - low.agents):.0f} %; the controller's loop has 100 %"
    )


async def run(options: argparse.Namespace, kind: str, sizes: list[int], folder: Path) -> list[Cost]:
    """The benchmark for a kind of agents; each size adds agents to those of the size before."""
    cluster = Cluster(folder)
    hosts: ManyHosts | None = None
    try:
        await cluster.start_controller()
        homes = folder / "agents"
        homes.mkdir()
        argument = str(homes) if kind == "agents" else str(PERIOD_S)
        real = kind == "agents"
        processes = REAL_PROCESSES if real else 1
        hosts = await ManyHosts.start(cluster.url, "agents" if real else "synthetic", argument, processes=processes)
        meter = Meter(psutil.Process(cluster.processes["controller"].pid), hosts.pids)
        costs: list[Cost] = []
        started = 0
        for size in sorted(sizes):
            joins = await join(cluster, hosts, meter, size - started)
            started = size
            if kind == "doubles":
                await hosts.send(sampling=True)
            await settle(cluster, size)
            cost = await observe(cluster, meter, kind, size, joins.count / joins.took_s, options.seconds)
            rests = (costs[-1].controller if costs else 0.0, cost.controller)
            print(f"{joins.count} joins less the fleet at rest: controller {joins.without_rest_ms(rests):.1f} ms each")
            if kind == "doubles":
                cost = replace(cost, herd_s=await hosts.send(herd=True))
                print(f"all {size} connections cut: all are back after {cost.herd_s:.1f} s", flush=True)
            costs.append(cost)
        extrapolate(costs)
        return costs
    finally:
        if hosts is not None:
            await hosts.aclose()
        await cluster.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[250, 500, 1000], help="numbers of real agents")
    parser.add_argument("--doubles", type=int, nargs="*", default=[1000, 5000], help="numbers of doubles")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each steady period")
    options = parser.parse_args()
    print(f"$ {shlex.join(sys.argv)}   ({psutil.cpu_count()} cores, {len(os.sched_getaffinity(0))} usable)", flush=True)
    costs: list[Cost] = []
    for kind, sizes in (("agents", options.sizes), ("doubles", options.doubles)):
        if sizes:
            with tempfile.TemporaryDirectory(prefix="gpuward-bench-") as folder:
                Path(folder).chmod(0o711)
                costs += asyncio.run(run(options, kind, sizes, Path(folder)))
    table(costs)


if __name__ == "__main__":
    main()
