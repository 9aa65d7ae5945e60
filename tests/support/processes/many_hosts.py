"""Many GPU hosts in few processes: real agents with simulated GPUs, or hosts that only speak the agents' protocol.

Usage: python many_hosts.py CONTROLLER_URL agents FOLDER FIRST STEP
       python many_hosts.py CONTROLLER_URL synthetic PERIOD_S FIRST STEP

The hosts of a process have the numbers FIRST, FIRST + STEP and so on. A line of stdin is a JSON object: {"tokens":
[...]} starts one further host for each join token, {"sampling": true} turns the samples of synthetic hosts on,
{"herd": true} cuts all their connections at once and waits until all are welcome again. Each line is answered on stdout
by the seconds that it took. The process ends with its stdin. `MANY_HOSTS_SEED` makes the waits of synthetic hosts the
same each time.

A synthetic host runs nothing: it accepts every command and reports at once. It costs far less than a real agent, so a
machine of few cores simulates a thousand hosts with thousands of instances. Every second instance uses its GPUs, the
others nearly not.
"""

import asyncio
import itertools
import json
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import aiohttp
import structlog
import uvloop

from agent.daemon import run_agent
from rig.agent import AgentDouble
from schemas.api.access import MAX_TOKEN_USES
from schemas.wire import HEARTBEAT_S
from support.processes.agents import simulated_settings
from support.processes.cluster import Cluster

GPUS = 8
MODEL = "NVIDIA H100 80GB HBM3"
BUSY, LOW = 90.0, 3.0  # percent
_JOINING_AT_ONCE = 20
_STARTING_AT_ONCE = 100  # real agents: one process starts no more within the time that a join may take
_LIMIT_S = 120.0
_GPU_MIB = 81_920
_USED_MIB = 40_000  # of a GPU on which something runs

_ORDER_LIMIT_S = 600.0

Start = Callable[[int, str], Awaitable[None]]  # number and join token; returns once the host is connected
Json = dict[str, Any]


class ManyHosts:
    """Such processes, as their bench sees them."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []

    @classmethod
    async def start(cls, url: str, kind: str, argument: str, *, processes: int = 1) -> Self:
        """Starts so many; the arguments are the command line's."""
        pipe = asyncio.subprocess.PIPE
        many = cls()
        try:
            for first in range(processes):
                argv = (sys.executable, __file__, url, kind, argument, str(first), str(processes))
                env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
                started = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, env=env)
                many._processes.append(started)
        except BaseException:
            await many.aclose()
            raise
        return many

    @property
    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self._processes]

    async def send(self, **order: Any) -> float:
        """Sends one order to each; returns the seconds that the slowest took."""
        return max(await asyncio.gather(*(_send_order(process, order) for process in self._processes)))

    async def add(self, cluster: Cluster, count: int) -> float:
        """Makes tokens and starts so many more hosts; returns the seconds until all were connected."""
        tokens: list[str] = []
        while len(tokens) < count:
            uses = min(MAX_TOKEN_USES, count - len(tokens))
            tokens += [(await cluster.post("/tokens", {"uses": uses}))["token"]] * uses
        step = len(self._processes)
        shares = [tokens[first::step] for first in range(step)]
        orders = zip(self._processes, shares, strict=True)
        return max(await asyncio.gather(*(_send_order(process, {"tokens": share}) for process, share in orders)))

    async def aclose(self) -> None:
        """Kills them."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _send_order(process: asyncio.subprocess.Process, order: Json) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    async with asyncio.timeout(_ORDER_LIMIT_S):
        return float(await process.stdout.readline())


def is_low(instance: str) -> bool:
    """Whether that instance is one of those that use their GPUs nearly not."""
    return sum(instance.encode()) % 2 == 0


class Synthetic:
    """Doubles of agents, which share one client session."""

    def __init__(self, url: str, period_s: float, http: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        self.sampling = False
        self._make = partial(
            AgentDouble, url=url, http=http, gpus=GPUS, model=MODEL, beat_s=HEARTBEAT_S, sample_s=period_s, load=load_of
        )
        self._group = group
        self._hosts: list[AgentDouble] = []

    async def start(self, number: int, token: str) -> None:
        """Joins a host and waits for its welcome."""
        host = self._make(f"host-{number}")
        await host.join(token)
        host.samples = self.sampling
        self._hosts.append(host)
        self._group.create_task(host.run(), name=host.name)
        await host.connected.wait()

    def sample(self, *, on: bool) -> None:
        """Turns the samples of all hosts on or off."""
        self.sampling = on
        for host in self._hosts:
            host.samples = on

    async def herd(self) -> None:
        """Cuts all connections at once, and waits until all hosts are welcome again."""
        for host in self._hosts:
            host.connected.clear()
            host.cut()
        for host in self._hosts:
            await host.connected.wait()


def load_of(instance: str) -> float:
    """The utilization of the GPUs of an instance, in percent; empty: of GPUs that are not in use."""
    return LOW if not instance or is_low(instance) else BUSY


def agents(url: str, folder: Path, group: asyncio.TaskGroup) -> Start:
    """Starts real agents, each with its own data folder."""
    stop = asyncio.Event()

    async def start(number: int, token: str) -> None:
        host = {"name": f"host-{number}", "gpus": [{"model": MODEL, "memory": "80GiB", "count": GPUS}]}
        home = folder / host["name"]
        home.mkdir()
        settings = simulated_settings(url, home, token, host)
        ready = asyncio.Event()
        group.create_task(run_agent(settings, stop=stop, on_ready=ready.set), name=settings.name)
        await ready.wait()

    return start


async def run(url: str, kind: str, argument: str, first: int, step: int) -> None:
    """Carries out the lines of stdin until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    count = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        synthetic = Synthetic(url, float(argument), session, group) if kind == "synthetic" else None
        start = synthetic.start if synthetic else agents(url, Path(argument), group)
        # A controller refuses synthetic hosts that come with too many others; agents wait and try again.
        limit = asyncio.Semaphore(_JOINING_AT_ONCE if synthetic else _STARTING_AT_ONCE)

        async def start_one(number: int, token: str) -> None:
            async with limit, asyncio.timeout(_LIMIT_S if synthetic else None):
                await start(number, token)

        while line := await reader.readline():
            began = time.monotonic()
            order = json.loads(line)
            if synthetic:
                synthetic.sample(on=order.get("sampling", synthetic.sampling))
                if order.get("herd"):
                    await synthetic.herd()
            tokens = order.get("tokens", [])
            numbers = itertools.count(first + count * step, step)
            await asyncio.gather(*(start_one(number, token) for number, token in zip(numbers, tokens, strict=False)))
            count += len(tokens)
            sys.stdout.write(f"{time.monotonic() - began}\n")
            sys.stdout.flush()
        os._exit(0)  # at once: a thousand clean ends would only take time


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        random.seed(os.environ.get("MANY_HOSTS_SEED"))
        runner.run(run(*sys.argv[1:4], first=int(sys.argv[4]), step=int(sys.argv[5])))
