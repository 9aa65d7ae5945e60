"""The cost of the way to the models: CPU, delay and memory, compared with nginx and a plain proxy in the same run.

Gpuward's way is public port, gateway, agent's port, engine; nginx and the plain proxy (asyncio protocols and httptools)
are one hop before the same engine. Only the hops' CPU counts, without their use at rest. Rounds are interleaved;
a ratio is the median of the rounds' ratios, since absolute figures drift. The bench exits with 1 if an aim is missed.
Without nginx on the machine its ratios cannot be judged. Other work on the machine raises them: it takes caches from
interpreted code first. So does an interpreter that was built without profile-guided optimization: the work in memory
for a small request takes about 1.25 times as long as with Debian's Python. To compare, run this on a machine with
python3-venv: `make bench-gateway PYTHON=/usr/bin/python3 VENV=build/debian`.

    make bench-gateway      (or: PYTHONPATH=tests python bench/gateway_cost.py --rounds 3 --seconds 3 [--two-gateways])
"""

import argparse
import asyncio
import os
import platform
import shlex
import statistics
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gateway_two import two_gateways
from gateway_ways import Load, Processes, Way, engine_port, gpuward, nginx, reference
from support.processes.cluster import Cluster

REST_S = 3.0  # in which the hops' use at rest is measured
CONNECTIONS = 64
STREAMS, EVENTS_PER_S = 100, 50
FIRST_STREAMS, SLOW_STREAMS = 20, 200
PROMPT_BYTES = 400_000

SMALL_RATIO, EVENT_RATIO, PROMPT_RATIO = 6.0, 2.5, 4.0
DELAY_P99_S = 0.020
STREAM_KIB = 16.0
PROMPT_ADDED_S = 0.004


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "bench", "messages": [{"role": "user", "content": content}], **fields}


@dataclass
class Figures:
    """A measure of each way, with a value for each round."""

    what: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, way: Way, value: float) -> None:
        self.values.setdefault(way.name, []).append(value)

    def median(self, way: str) -> float:
        return statistics.median(self.values[way])

    def ratio(self, base: str) -> float | None:
        """The ratio of Gpuward to `base`; None if that was not measured."""
        if base not in self.values:
            return None
        pairs = zip(self.values["gpuward"], self.values[base], strict=True)
        return statistics.median(own / other for own, other in pairs)

    def line(self) -> str:
        cells = [f"{name} {self.median(name):.1f}" for name in self.values]
        ratios = [f"{ratio:.1f} x {name}" for name in self.values if name != "gpuward" and (ratio := self.ratio(name))]
        return f"      {self.what} ({self.unit}): {', '.join(cells)}; {', '.join(ratios)}"


class Bench:
    """Measures all ways in turn."""

    def __init__(self, ways: list[Way], load: Load, seconds: float) -> None:
        self._ways = ways
        self._load = load
        self._seconds = seconds
        self._rest: dict[str, float] = {}  # CPU seconds in a second
        self.small = Figures("CPU per small request", "µs")
        self.small_p50 = Figures("time of a small request, p50", "ms")
        self.event = Figures("CPU per event", "µs")
        self.delay = Figures("delay of an event, p50", "ms")
        self.delay_p99 = Figures("delay of an event, p99", "ms")
        self.prompt = Figures("CPU per 400 KB prompt", "µs")
        self.prompt_p50 = Figures("time of a 400 KB prompt, p50", "ms")
        self.lost = 0

    async def rest(self) -> None:
        before = {way.name: way.cpu_s() for way in self._ways if way.name != "engine"}
        await asyncio.sleep(REST_S)
        for way in self._ways:
            if way.name in before:
                self._rest[way.name] = (way.cpu_s() - before[way.name]) / REST_S

    async def _cpu(self, way: Way, kind: str, count: int, body: dict[str, Any]) -> tuple[dict[str, Any], float]:
        began, before = time.monotonic(), way.cpu_s()
        outcome = await self._load.send(way, kind, count, body, seconds=self._seconds)
        rest = self._rest.get(way.name, 0.0) * (time.monotonic() - began)
        return outcome, way.cpu_s() - before - rest

    async def round(self) -> None:
        for way in self._ways:
            outcome, cpu = await self._cpu(way, "requests", CONNECTIONS, chat("hello", max_tokens=1))
            self.small_p50.add(way, outcome["p50_s"] * 1e3)
            if way.name != "engine":
                self.small.add(way, cpu / outcome["requests"] * 1e6)
        tokens = int(self._seconds * EVENTS_PER_S)
        prompt_text = f"[simulate tokens={tokens} token_seconds={1 / EVENTS_PER_S}]"
        for way in self._ways:
            outcome, cpu = await self._cpu(way, "streams", STREAMS, chat(prompt_text, stream=True))
            self.delay.add(way, outcome["delay_p50_s"] * 1e3)
            self.delay_p99.add(way, outcome["delay_p99_s"] * 1e3)
            self.lost += STREAMS * tokens - outcome["events"]
            if way.name != "engine":
                self.event.add(way, cpu / outcome["events"] * 1e6)
        prompt = chat("word " * (PROMPT_BYTES // 5), max_tokens=1)
        for way in self._ways:
            outcome, cpu = await self._cpu(way, "requests", 1, prompt)
            self.prompt_p50.add(way, outcome["p50_s"] * 1e3)
            if way.name != "engine":
                self.prompt.add(way, cpu / outcome["requests"] * 1e6)

    async def kib_per_stream(self, way: Way) -> float:
        """The memory of an open stream, without the memory that the first streams allocate once.

        It must be the first measure, since others grow the processes.
        """
        prompt_text = "[simulate tokens=1000 token_seconds=1]"
        await self._load.send(way, "requests", 8, chat("hello", max_tokens=1), seconds=0.5)
        await self._load.send(way, "hold", FIRST_STREAMS, chat(prompt_text, stream=True))
        await self._load.send(way, "release", 0, {})
        await asyncio.sleep(1)
        before = way.memory_bytes()
        await self._load.send(way, "hold", SLOW_STREAMS, chat(prompt_text, stream=True))
        await asyncio.sleep(2)
        held = way.memory_bytes() - before
        await self._load.send(way, "release", 0, {})
        return held / SLOW_STREAMS / 1024


class Verdict:
    """Prints aims. `passed`: all are met."""

    def __init__(self) -> None:
        self.passed = True

    def check(self, what: str, figure: float | None, limit: float, unit: str) -> None:
        """`figure`: None if it was not measured."""
        if figure is None:
            print(f"  ?   {what}: not measured, since nginx is not installed")
            return
        ok = figure <= limit
        self.passed = self.passed and ok
        print(f"{'pass' if ok else 'FAIL'}  {what}: {figure:.1f}{unit}, aim {limit:g}{unit}")


def judge(bench: Bench, stream_kib: float, verdict: Verdict) -> None:
    for figures in (
        bench.small, bench.small_p50, bench.event, bench.delay, bench.delay_p99, bench.prompt, bench.prompt_p50,
    ):  # fmt: skip
        print(figures.line())
    print(f"      events lost: {bench.lost}")
    verdict.check("CPU per small request, both hops, to nginx", bench.small.ratio("nginx"), SMALL_RATIO, " x")
    verdict.check("CPU per event, both hops, to nginx", bench.event.ratio("nginx"), EVENT_RATIO, " x")
    verdict.check("p99 of the delay of an event", bench.delay_p99.median("gpuward"), DELAY_P99_S * 1e3, " ms")
    verdict.check("events lost", bench.lost, 0, "")
    verdict.check("memory of an open stream, both hops", stream_kib, STREAM_KIB, " KiB")
    verdict.check("CPU per 400 KB prompt, both hops, to nginx", bench.prompt.ratio("nginx"), PROMPT_RATIO, " x")
    if "nginx" in bench.prompt_p50.values:
        added = bench.prompt_p50.median("gpuward") - bench.prompt_p50.median("nginx")
        verdict.check("p50 that a 400 KB prompt takes longer than with nginx", added, PROMPT_ADDED_S * 1e3, " ms")


async def run(options: argparse.Namespace, folder: Path) -> bool:
    cluster, processes, verdict = Cluster(folder), Processes(), Verdict()
    cluster.use_rig()  # for streams of a stated pace
    try:
        await cluster.start_controller()
        await cluster.start_agent("host", gpus=1)
        await cluster.apply("bench", resources={"gpus": 0})
        await cluster.running("bench")
        load, own = await Load.start(processes), await gpuward(cluster, "host")
        if options.two_gateways:
            return await two_gateways(cluster, processes, own, options.seconds)
        stream_kib = await Bench([own], load, options.seconds).kib_per_stream(own)
        port = engine_port(cluster)
        others = [await nginx(processes, port, folder), await reference(processes, port)]
        direct = Way("engine", port, list)
        bench = Bench([direct, *(way for way in others if way is not None), own], load, options.seconds)
        await bench.rest()
        for number in range(options.rounds):
            await bench.round()
            print(f"      round {number + 1} of {options.rounds}", flush=True)
        judge(bench, stream_kib, verdict)
    finally:
        await processes.aclose()
        await cluster.aclose()
    return verdict.passed


def interpreter() -> str:
    """Its version, and whether it is optimized by profile, as Debian's is without that option."""
    guided = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")) or sys.base_prefix == "/usr"
    return f"Python {platform.python_version()}, {'optimized by profile' if guided else 'not optimized by profile'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all ways")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measure")
    parser.add_argument("--two-gateways", action="store_true", help="watch the controller under two loaded gateways")
    options = parser.parse_args()
    cores = f"{psutil.cpu_count()} cores, {len(os.sched_getaffinity(0))} usable"
    print(f"$ {shlex.join(sys.argv)}   ({cores}; {interpreter()})")
    with tempfile.TemporaryDirectory(prefix="gpuward-bench-") as folder:
        Path(folder).chmod(0o711)
        passed = asyncio.run(run(options, Path(folder)))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
