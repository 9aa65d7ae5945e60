"""Many GPU hosts in one process that speak the agents' protocol and run nothing: orders are obeyed in words only.

They cost far less than real agents, so a machine of few cores can play a thousand with thousands of instances. Usage:
python synthetic_hosts.py CONTROLLER_URL PERIOD_S. A line of stdin is a JSON object: {"tokens": [...]} has so many more
hosts join, {"sampling": true} has all of them send samples. Each line is answered by one on stdout when it is done.
Every second instance uses its GPUs, the others nearly not. Ends with its stdin.
"""

import asyncio
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import uvloop

from schemas.wire import CONNECT_PATH, HEARTBEAT_S, JOIN_PATH, PROTOCOL

GPUS = 8
BUSY, LOW = 90.0, 3.0  # percent
_JOINING_AT_ONCE = 20
_LIMIT_S = 120.0
_GPU_MIB = 81_920
_USED_MIB = 40_000  # of a GPU on which something runs


def is_low(instance: str) -> bool:
    """Whether that instance is one of those that nearly do nothing."""
    return sum(instance.encode()) % 2 == 0


@dataclass
class Shared:
    """What all hosts go by."""

    url: str
    period_s: float
    session: aiohttp.ClientSession
    sampling: bool = False


@dataclass
class Host:
    """One host: its GPUs, and which instance holds which."""

    shared: Shared
    number: int
    credential: str
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    held: dict[str, tuple[int, list[str]]] = field(default_factory=dict)  # instance: epoch, GPUs
    seq: int = 0
    boot_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def gpus(self) -> list[str]:
        return [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.number}/{index}')}" for index in range(GPUS)]

    async def run(self) -> None:
        """Connects, then obeys, beats and samples until it is cancelled."""
        headers = {"Authorization": f"Bearer {self.credential}"}
        url = self.shared.url + CONNECT_PATH
        async with self.shared.session.ws_connect(url, headers=headers, max_msg_size=2**24) as socket:
            await self._say(socket, self._hello())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(socket), name="listen")
                group.create_task(self._beat(socket), name="beat")
                group.create_task(self._sample(socket), name="sample")

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            said = orjson.loads(message.data)
            match said["type"]:
                case "welcome":
                    self.ready.set()
                case "command":
                    await self._obey(socket, said)
                case "rejected":
                    raise RuntimeError(said["message"])
        raise ConnectionError(f"host {self.number} lost its connection")

    async def _obey(self, socket: aiohttp.ClientWebSocketResponse, command: dict[str, Any]) -> None:
        instance, epoch = command["instance"], command["epoch"]
        await self._say(socket, {"type": "result", "command_id": command["command_id"], "outcome": "accepted"})
        if command["verb"] == "start":
            self.held[instance] = epoch, [claim["device"] for claim in command["start"]["claims"]]
            await self._report(socket, instance, epoch, {"state": "running", "ready": True, "pid": 4711})
        else:
            self.held.pop(instance, None)
            await self._report(socket, instance, epoch, {"state": "exited", "reason": "stopped", "exit_code": 0})

    async def _report(
        self, socket: aiohttp.ClientWebSocketResponse, instance: str, epoch: int, state: dict[str, Any]
    ) -> None:
        self.seq += 1
        report = {"type": "process", "instance": instance, "epoch": epoch, "seq": self.seq}
        await self._say(socket, {**report, **state})

    async def _beat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        beats = 0
        async for _ in _each(HEARTBEAT_S, self.number):
            beats += 1
            await self._say(
                socket, {"type": "heartbeat", "seq": beats, "sent_s": time.monotonic(), "gpus": self._facts()}
            )

    async def _sample(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for _ in _each(self.shared.period_s, self.number):
            if self.shared.sampling:
                await self._say(socket, self._samples())

    def _samples(self) -> dict[str, Any]:
        now_s = time.monotonic()
        low = {"mean": LOW, "max": LOW + 1}
        busy = {"mean": BUSY, "max": BUSY + 5}
        readings = dict.fromkeys(self.gpus, low)
        processes = []
        for instance, (epoch, devices) in self.held.items():
            used = dict.fromkeys(devices, low if is_low(instance) else busy)
            readings.update(used)
            processes.append({"instance": instance, "epoch": epoch, "utilization": used, "requests": 0})
        gpus = [{"uuid": uuid_, "used_mib": self._used_mib(uuid_), **of} for uuid_, of in readings.items()]
        period = {"seq": int(now_s * 1000), "sampled_s": now_s, "period_s": self.shared.period_s}
        return {"type": "samples", "sent_s": now_s, "periods": [{**period, "gpus": gpus, "processes": processes}]}

    def _facts(self) -> list[dict[str, Any]]:
        fixed = {"model": "NVIDIA H100 80GB HBM3", "memory_mib": _GPU_MIB, "compute_capability": "9.0"}
        return [
            {**fixed, "uuid": uuid_, "index": index, "used_mib": self._used_mib(uuid_), "utilization": LOW}
            for index, uuid_ in enumerate(self.gpus)
        ]

    def _used_mib(self, gpu: str) -> int:
        """In use is what is claimed: the controller places nothing on memory that no claim explains."""
        return _USED_MIB if any(gpu in devices for _, devices in self.held.values()) else 0

    def _hello(self) -> dict[str, Any]:
        host = {"os": "linux", "arch": "x86_64", "hostname": f"host-{self.number}", "driver": "580.95"}
        size = {"memory_mib": 2**20, "cpu_milli": 128_000, "simulated": True}
        picture = {"host": {**host, **size}, "gpus": self._facts()}
        said = {"type": "hello", "agent_version": "0", "boot_id": self.boot_id, "proxy_port": 7070}
        return {**said, "protocol": PROTOCOL, "sent_s": time.monotonic(), "inventory": picture, "processes": []}

    async def _say(self, socket: aiohttp.ClientWebSocketResponse, message: dict[str, Any]) -> None:
        async with asyncio.timeout(_LIMIT_S):
            await socket.send_str(orjson.dumps(message).decode())


async def _each(period_s: float, number: int) -> Any:
    """Ends a sleep once a period; hosts are spread evenly over it."""
    loop = asyncio.get_running_loop()
    due = loop.time() + period_s * (number * 0.618 % 1)
    while True:
        await asyncio.sleep(max(0.0, due - loop.time()))
        yield
        due += period_s


async def _join(shared: Shared, number: int, token: str) -> Host:
    body = {"token": token, "name": f"host-{number}", "agent_version": "0"}
    async with shared.session.post(shared.url + JOIN_PATH, json=body) as response:
        answer = await response.json()
        if response.status >= 300:
            raise RuntimeError(answer)
        return Host(shared, number, answer["credential"])


async def play(url: str, period_s: float) -> None:
    """Plays hosts as told, until there is nobody left to tell."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    connector = aiohttp.TCPConnector(limit=0)
    limit, count = asyncio.Semaphore(_JOINING_AT_ONCE), 0
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        shared = Shared(url, period_s, session)

        async def bring(number: int, token: str) -> None:
            async with limit, asyncio.timeout(_LIMIT_S):  # a controller turns away who comes with too many others
                host = await _join(shared, number, token)
                group.create_task(host.run(), name=f"host-{number}")
                await host.ready.wait()

        while line := await reader.readline():
            order = json.loads(line)
            shared.sampling = order.get("sampling", shared.sampling)
            tokens = order.get("tokens", [])
            await asyncio.gather(*(bring(count + n, token) for n, token in enumerate(tokens)))
            count += len(tokens)
            sys.stdout.write("done\n")
            sys.stdout.flush()
        os._exit(0)  # at once: a thousand clean ends are nobody's business


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play(sys.argv[1], float(sys.argv[2])))
