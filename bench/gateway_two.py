"""The controller while two gateways are at full load: its API, placement and heartbeats keep their limits.

Each figure is also taken without load, and the ratio is printed: absolute figures drift with the machine.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg

from controller.serving import SOCKET_NAME
from gateway_ways import Load, Processes, Way, family, free_port, gateways
from support.processes.cluster import Cluster

CONNECTIONS = 64  # on each gateway
GET_EVERY_S = 0.02
GET_P99_S = 0.050
RUNS_RATIO = 2.0  # of the time from an apply until it runs, with load
HEARD_LATER_S = 2.0  # longer since an agent was heard than without load
POLL_EVERY_S = 0.1
WARM_UP_S = 1.0
DEPLOYMENTS = 5
READY_LIMIT_S = 30.0


@dataclass(frozen=True)
class Figures:
    """Figures of the controller, in seconds; `not_ready` counts polls that found the agent not ready."""

    gets: list[float]  # of the controller itself, on its socket; sorted
    through: list[float]  # the same through a loaded gateway; sorted
    runs: float  # from apply to running, the median
    heard: float  # since the agent was last heard, at most
    not_ready: int


def quantile(sorted_values: list[float], share: float) -> float:
    """The value below which this share lies."""
    return sorted_values[int(share * (len(sorted_values) - 1))]


def chat() -> dict[str, Any]:
    return {"model": "bench", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


async def two_gateways(cluster: Cluster, processes: Processes, first: Way, seconds: float) -> bool:
    if gateways(cluster)[0].pid == cluster.processes["controller"].pid:
        print("FAIL  the gateway is part of the controller's process: there cannot be two")
        return False
    second = await _second(cluster, first)
    duration = max(10.0, 4 * seconds)
    rest = await _figures(cluster, "rest", duration)
    loads = [await Load.start(processes) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        loaded = [
            group.create_task(load.send(way, "requests", CONNECTIONS, chat(), seconds=duration + 2 * WARM_UP_S))
            for load, way in zip(loads, (first, second), strict=True)
        ]
        await asyncio.sleep(WARM_UP_S)
        full = await _figures(cluster, "load", duration)
    served = [task.result()["requests"] / (duration + 2 * WARM_UP_S) for task in loaded]
    print(f"      requests per second: {served[0]:.0f} and {served[1]:.0f}; {len(full.gets)} GETs")
    return _judge(rest, full)


def _judge(rest: Figures, full: Figures) -> bool:
    for what, loaded, idle in (
        ("GET at the controller", full.gets, rest.gets),
        ("GET through a gateway", full.through, rest.through),
    ):
        for share in (0.5, 0.99):
            there, here = quantile(loaded, share), quantile(idle, share)
            times = f"{there * 1e3:.1f} ms, at rest {here * 1e3:.1f} ms: {there / here:.1f} x"
            print(f"      p{share * 100:.0f} of a {what}: {times}")
    p99, runs, heard = quantile(full.gets, 0.99), full.runs, full.heard
    checks = (
        (
            f"p99 of a deployment's GET at the controller: {p99 * 1e3:.1f} ms, aim {GET_P99_S * 1e3:.0f} ms",
            p99 <= GET_P99_S,
        ),
        (
            f"from apply to running: {runs:.2f} s, at rest {rest.runs:.2f} s: {runs / rest.runs:.1f} x",
            runs <= max(1.0, RUNS_RATIO * rest.runs),
        ),
        (
            f"longest since the agent was heard: {heard:.1f} s, at rest {rest.heard:.1f} s: {heard / rest.heard:.1f} x",
            heard <= rest.heard + HEARD_LATER_S,
        ),
        (f"polls that found the agent not ready: {full.not_ready}", full.not_ready == 0),
    )
    for what, ok in checks:
        print(f"{'pass' if ok else 'FAIL'}  {what}")
    return all(ok for _, ok in checks)


async def _figures(cluster: Cluster, name: str, seconds: float) -> Figures:
    connector = aiohttp.UnixConnector(str(cluster.data_dir / SOCKET_NAME))
    async with (
        aiohttp.ClientSession("http://controller", headers=cluster.session.headers, connector=connector) as own,
        asyncio.TaskGroup() as group,
    ):
        gets = group.create_task(_gets(own, seconds))
        through = group.create_task(_gets(cluster.session, seconds))
        heard = group.create_task(_longest_unheard(cluster, seconds))
        silences = group.create_task(_silences(cluster, seconds))
        runs = await _apply_to_running(cluster, name)
    return Figures(sorted(gets.result()), sorted(through.result()), runs, heard.result(), silences.result())


async def _longest_unheard(cluster: Cluster, seconds: float) -> float:
    """The longest time since the agent's last message, as the controller has written it."""
    database = await asyncpg.connect(gateways(cluster)[0].environ()["GPUWARD_DATABASE_URL"])
    longest, until = 0.0, time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            age = await database.fetchval("select max(extract(epoch from now() - last_seen)) from worker_liveness")
            longest = max(longest, float(age))
            await asyncio.sleep(POLL_EVERY_S)
    finally:
        await database.close()
    return longest


async def _second(cluster: Cluster, first: Way) -> Way:
    """Starts another gateway before the same controller and database, as the first was started."""
    port, known = free_port(), gateways(cluster)[0]
    argv, env = known.cmdline(), {name: value for name, value in known.environ().items() if name.startswith("GPUWARD_")}
    controller = argv[argv.index("--controller") + 1] if "--controller" in argv else env.pop("GPUWARD_CONTROLLER")
    env.pop("GPUWARD_PORT", None)
    cluster.start("gateway-2", "gateway", "--controller", controller, "--port", str(port), **env)
    way = Way("gateway-2", port, gateways_of_second(cluster), first.key)
    await cluster.until(lambda: _ready(cluster, port), "the second gateway is ready", READY_LIMIT_S)
    return way


def gateways_of_second(cluster: Cluster) -> Any:
    return lambda: family(cluster.processes["gateway-2"].pid)


async def _ready(cluster: Cluster, port: int) -> bool:
    try:
        async with cluster.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except OSError:
        return False


async def _gets(session: aiohttp.ClientSession, seconds: float) -> list[float]:
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        async with session.get("/api/v1/deployments/bench") as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        took.append(time.monotonic() - began)
        await asyncio.sleep(GET_EVERY_S)
    return took


async def _silences(cluster: Cluster, seconds: float) -> int:
    """The number of polls that found the agent not ready."""
    count = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        count += not await cluster.worker_is("host", "ready")
        await asyncio.sleep(0.2)
    return count


async def _apply_to_running(cluster: Cluster, name: str) -> float:
    took = []
    for number in range(DEPLOYMENTS):
        began = time.monotonic()
        await cluster.apply(f"{name}-{number}", resources={"gpus": 0})
        await cluster.running(f"{name}-{number}")
        took.append(time.monotonic() - began)
        await cluster.delete(f"{name}-{number}")
    return statistics.median(took)
