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
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from socket import SHUT_RDWR
from socket import socket as Socket  # noqa: N812 - a class
from typing import Any, Self

import aiohttp
import msgspec
import orjson
import structlog
import uvloop

from agent.daemon import run_agent
from agent.link.link import BACKOFF_FIRST_S, BACKOFF_MAX_S
from schemas.api.access import MAX_TOKEN_USES
from schemas.wire import CONNECT_PATH, HEARTBEAT_S, JOIN_PATH, DeviceFacts
from support.processes.agents import simulated_settings
from support.processes.cluster import Cluster
from support.standins import agent as standin
from support.standins.agent import hello, inventory

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


@dataclass
class Synthetic:
    """Starts synthetic hosts, which share one client session."""

    url: str
    period_s: float
    session: aiohttp.ClientSession
    group: asyncio.TaskGroup
    sampling: bool = False
    hosts: "list[SyntheticHost]" = field(default_factory=list)

    async def start(self, number: int, token: str) -> None:
        """Joins a host and waits for its welcome."""
        body = {"token": token, "name": f"host-{number}", "agent_version": "0"}
        async with self.session.post(self.url + JOIN_PATH, json=body) as response:
            answer = await response.json()
            if response.status >= 300:
                raise RuntimeError(answer)
        host = SyntheticHost(self, number, answer["credential"])
        self.hosts.append(host)
        self.group.create_task(host.run(), name=f"host-{number}")
        await host.ready.wait()

    async def herd(self) -> None:
        """Cuts all connections at once, and waits until all hosts are welcome again."""
        for host in self.hosts:
            host.ready.clear()
            with Socket(fileno=os.dup(host.fd)) as connection:
                connection.shutdown(SHUT_RDWR)
        for host in self.hosts:
            await host.ready.wait()


@dataclass
class SyntheticHost:
    """One host: its GPUs, and which instance holds which."""

    shared: Synthetic
    number: int
    credential: str
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    held: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # instance: epoch, GPUs
    seq: int = 0
    fd: int = -1  # of the connection

    def __post_init__(self) -> None:
        self.gpus = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.number}/{index}')}" for index in range(GPUS)]

    async def run(self) -> None:
        """Stays connected, or tries again as an agent does, until it is cancelled."""
        wait_s, turn_s = BACKOFF_FIRST_S, 0.0
        while True:
            try:
                await self._serve()
            except* (aiohttp.ClientError, ConnectionError) as failures:
                wait_s = BACKOFF_FIRST_S if self.ready.is_set() else min(2 * wait_s, BACKOFF_MAX_S)
                turn_s = _turn_s(failures)
            await asyncio.sleep(turn_s + random.uniform(0, 1.0 if turn_s else wait_s))  # noqa: S311 - keeps no secret

    async def _serve(self) -> None:
        """Connects, then obeys, sends heartbeats and samples until the connection ends."""
        headers = {"Authorization": f"Bearer {self.credential}"}
        url = self.shared.url + CONNECT_PATH
        async with self.shared.session.ws_connect(url, headers=headers, max_msg_size=2**24) as socket:
            facts = [msgspec.convert(fact, DeviceFacts) for fact in self._facts()]
            picture = inventory(facts, hostname=f"host-{self.number}", simulated=True)
            first = hello(
                boot_id=f"boot-{self.number}",
                shape=picture,
                sent_s=time.monotonic(),
                processes=[
                    standin.process(one, seq=self.seq, epoch=epoch, ready=True) for one, (epoch, _) in self.held.items()
                ],
                report_seq=self.seq,
            )
            await socket.send_str(msgspec.json.encode(first).decode())
            self.fd = socket.get_extra_info("socket").fileno()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(socket), name="listen")
                group.create_task(self._send_heartbeats(socket), name="heartbeats")
                group.create_task(self._send_samples(socket), name="samples")

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            content = orjson.loads(message.data)
            match content["type"]:
                case "welcome":
                    self.ready.set()
                case "command":
                    await self._obey(socket, content)
                case "rejected":
                    raise ConnectionError(content["message"])
        raise ConnectionError(f"host {self.number} lost its connection")

    async def _obey(self, socket: aiohttp.ClientWebSocketResponse, command: Json) -> None:
        instance, epoch = command["instance"], command["epoch"]
        await _send(socket, {"type": "result", "command_id": command["command_id"], "outcome": "accepted"})
        if command["verb"] == "start":
            self.held[instance] = epoch, [claim["device"] for claim in command["start"]["claims"]]
            state: Json = {"state": "running", "ready": True, "pid": 4711}
        else:
            self.held.pop(instance, None)
            state = {"state": "exited", "reason": "stopped", "exit_code": 0}
        self.seq += 1
        await _send(socket, {"type": "process", "instance": instance, "epoch": epoch, "seq": self.seq, **state})

    async def _send_heartbeats(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        seq = 0
        async for _ in _each(HEARTBEAT_S, self.number):
            seq += 1
            await _send(socket, {"type": "heartbeat", "seq": seq, "sent_s": time.monotonic(), "gpus": self._facts()})

    async def _send_samples(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for _ in _each(self.shared.period_s, self.number):
            if self.shared.sampling:
                await _send(socket, self._samples())

    def _samples(self) -> Json:
        now_s = time.monotonic()
        low = {"mean": LOW, "max": LOW + 1}
        busy = {"mean": BUSY, "max": BUSY + 5}
        readings = dict.fromkeys(self.gpus, low)
        processes = []
        for instance, (epoch, devices) in self.held.items():
            used = dict.fromkeys(devices, low if is_low(instance) else busy)
            readings.update(used)
            processes.append({"instance": instance, "epoch": epoch, "utilization": used, "requests": 0})
        gpus = [{"uuid": gpu, "used_mib": self._used_mib(gpu), **of} for gpu, of in readings.items()]
        period = {"seq": int(now_s * 1000), "sampled_s": now_s, "period_s": self.shared.period_s}
        return {"type": "samples", "sent_s": now_s, "periods": [{**period, "gpus": gpus, "processes": processes}]}

    def _facts(self) -> list[Json]:
        fixed = {"model": MODEL, "memory_mib": _GPU_MIB, "compute_capability": "9.0", "utilization": LOW}
        return [
            {**fixed, "uuid": gpu, "index": index, "used_mib": self._used_mib(gpu)}
            for index, gpu in enumerate(self.gpus)
        ]

    def _used_mib(self, gpu: str) -> int:
        """Only claimed memory is in use: the controller places nothing on memory that no claim explains."""
        return _USED_MIB if any(gpu in devices for _, devices in self.held.values()) else 0


def _turn_s(failures: BaseExceptionGroup[Exception]) -> float:
    """Seconds after which a controller that is busy wants it to come again; 0: it names none."""
    for error in failures.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _turn_s(error)
        if isinstance(error, aiohttp.WSServerHandshakeError):
            return float((error.headers or {}).get("Retry-After", 0))
    return 0.0


async def _send(socket: aiohttp.ClientWebSocketResponse, message: Json) -> None:
    async with asyncio.timeout(_LIMIT_S):
        await socket.send_str(orjson.dumps(message).decode())


async def _each(period_s: float, number: int) -> AsyncIterator[None]:
    """Yields once a period; hosts are spread evenly over it."""
    loop = asyncio.get_running_loop()
    due = loop.time() + period_s * (number * 0.618 % 1)
    while True:
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield
        due += period_s


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
                synthetic.sampling = order.get("sampling", synthetic.sampling)
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
