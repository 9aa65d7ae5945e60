"""The controller while two gateways are at full load: its API, placement and heartbeats keep their limits."""

import asyncio
import statistics
import time
from typing import Any

from gateway_ways import Load, Processes, Way, family, free_port, gateways
from support.processes.cluster import Cluster

CONNECTIONS = 64  # on each gateway
GET_EVERY_S = 0.02
GET_P99_S = 0.050
RUNS_RATIO = 2.0  # with load, of what an apply takes until it runs
WARM_UP_S = 1.0
DEPLOYMENTS = 5
READY_LIMIT_S = 30.0


def chat() -> dict[str, Any]:
    """A small request."""
    return {"model": "bench", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


async def two_gateways(cluster: Cluster, processes: Processes, first: Way, seconds: float) -> bool:
    """Runs the part; whether all aims are met."""
    if gateways(cluster)[0].pid == cluster.processes["controller"].pid:
        print("FAIL  the gateway is part of the controller's process: there cannot be two")
        return False
    second = await _second(cluster, first)
    at_rest = await _apply_to_running(cluster, "rest")
    loads = [await Load.start(processes) for _ in range(2)]
    duration = max(10.0, 4 * seconds)
    async with asyncio.TaskGroup() as group:
        loaded = [
            group.create_task(load.send(way, "requests", CONNECTIONS, chat(), seconds=duration))
            for load, way in zip(loads, (first, second), strict=True)
        ]
        await asyncio.sleep(WARM_UP_S)
        reading = group.create_task(_gets(cluster, duration - 2 * WARM_UP_S))
        silent = group.create_task(_silences(cluster, duration - 2 * WARM_UP_S))
        runs_s = await _apply_to_running(cluster, "load")
    served = [task.result()["requests"] / duration for task in loaded]
    got = sorted(reading.result())
    p99 = got[int(0.99 * len(got))]
    p50 = got[len(got) // 2]
    print(f"      requests per second: {served[0]:.0f} and {served[1]:.0f}; {len(got)} GETs, p50 {p50 * 1e3:.1f} ms")
    checks = (
        (f"p99 of a deployment's GET: {p99 * 1e3:.1f} ms, aim {GET_P99_S * 1e3:.0f} ms", p99 <= GET_P99_S),
        (f"from apply to running: {runs_s:.2f} s, at rest {at_rest:.2f} s", runs_s <= max(1.0, RUNS_RATIO * at_rest)),
        (f"looks that found the agent not ready: {silent.result()}", silent.result() == 0),
    )
    for what, ok in checks:
        print(f"{'pass' if ok else 'FAIL'}  {what}")
    return all(ok for _, ok in checks)


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
    """Its processes, when they are asked for."""
    return lambda: family(cluster.processes["gateway-2"].pid)


async def _ready(cluster: Cluster, port: int) -> bool:
    try:
        async with cluster.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except OSError:
        return False


async def _gets(cluster: Cluster, seconds: float) -> list[float]:
    """How long each GET of a deployment took."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        await cluster.get("/deployments/bench")
        took.append(time.monotonic() - began)
        await asyncio.sleep(GET_EVERY_S)
    return took


async def _silences(cluster: Cluster, seconds: float) -> int:
    """How often the agent was found not ready."""
    found = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found += not await cluster.worker_is("host", "ready")
        await asyncio.sleep(0.2)
    return found


async def _apply_to_running(cluster: Cluster, name: str) -> float:
    """The median time from an apply until it runs."""
    took = []
    for number in range(DEPLOYMENTS):
        began = time.monotonic()
        await cluster.apply(f"{name}-{number}", resources={"gpus": 0})
        await cluster.running(f"{name}-{number}")
        took.append(time.monotonic() - began)
        await cluster.delete(f"{name}-{number}")
    return statistics.median(took)
