"""Clients that mean no good, and what an honest one notices of them."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, asked

PING = b"\x89\x80\x00\x00\x00\x00"  # a masked frame without data
_MOST_REPLY_BYTES = 64 * 1024


async def waits(cluster: Cluster, seconds: float, *, every_s: float = 0.05) -> list[float]:
    """How long requests of an honest client took, over kept and new connections; in seconds, sorted."""
    took = []
    until = time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=20)
    while time.monotonic() < until:
        began = time.monotonic()
        async with cluster.session.post(CHAT, json=asked("tokens=1"), timeout=timeout) as answer:
            assert answer.status == 200, await answer.text()
        async with (
            aiohttp.ClientSession(cluster.url, headers=cluster.session.headers) as session,
            session.get("/api/v1/workers", timeout=timeout) as answer,
        ):
            assert answer.status == 200, await answer.text()
        took.append(time.monotonic() - began)
        await asyncio.sleep(every_s)
    return sorted(took)


@asynccontextmanager
async def meanwhile(*attackers: asyncio.Task[int]) -> AsyncIterator[None]:
    """Runs attackers until the context ends; each must still attack then."""
    try:
        await asyncio.sleep(0.5)
        yield
        assert not any(attacker.done() for attacker in attackers), [one for one in attackers if one.done()]
    finally:
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def churn(port: int, first: bytes, counted: list[int]) -> int:
    """Connects, says this, reads a little, and connects anew, as fast as it can."""
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as client, contextlib.suppress(OSError, TimeoutError):
            client.setblocking(False)
            async with asyncio.timeout(5):
                await loop.sock_connect(client, ("127.0.0.1", port))
                if first:
                    await loop.sock_sendall(client, first)
                    await loop.sock_recv(client, 512)
        counted.append(1)
        await asyncio.sleep(0)


async def ping_flood(socket_: aiohttp.ClientWebSocketResponse) -> int:
    """Sends pings over an open WebSocket as fast as they are taken."""
    transport = socket_._writer.transport
    sent = 0
    while not socket_.closed:
        if transport.get_write_buffer_size() < 2**20:
            transport.write(PING * 10_000)
            sent += 10_000
        await asyncio.sleep(0.01)
    return sent


def unread_stream(port: int, key: str, body: bytes) -> socket.socket:
    """Asks for a stream and will read nothing of it; the kernel takes little of it for this client."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


class Fuzzer:
    """Sends mutations of valid requests over raw sockets; keeps the statuses of what is answered."""

    def __init__(self, port: int, seeds: list[bytes], random_: random.Random) -> None:
        self._port = port
        self._seeds = seeds
        self._random = random_
        self.statuses: dict[str, int] = {}
        self.hung: list[bytes] = []
        self.sent = 0

    async def run(self, seconds: float, at_once: int = 8) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._one_by_one(until) for _ in range(at_once)))

    async def _one_by_one(self, until: float) -> None:
        while time.monotonic() < until:
            await self._send(self.mutated())

    def mutated(self) -> bytes:
        """A valid request, cut up and changed in a few places."""
        some = self._random
        data = bytearray(some.choice(self._seeds))
        for _ in range(some.choice((0, 1, 1, 2, 5))):
            at = some.randrange(len(data)) if data else 0
            match some.randrange(7):
                case 0:
                    data[at : at + 1] = bytes([some.randrange(256)])
                case 1:
                    del data[at : at + some.randrange(1, 20)]
                case 2:
                    data[at:at] = bytes(some.randrange(256) for _ in range(some.randrange(1, 20)))
                case 3:
                    data[at:at] = some.choice(_WORDS)
                case 4:
                    data += some.choice(self._seeds)
                case 5:
                    data = data[:at]
                case _:
                    other = some.choice(self._seeds)
                    data[at:] = other[some.randrange(len(other)) :]
        return bytes(data)

    async def _send(self, data: bytes) -> None:
        self.sent += 1
        try:
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    for piece in self._pieces(data):
                        writer.write(piece)
                        await asyncio.sleep(0)
                    if self._random.random() < 0.7:
                        writer.write_eof()
                    answer = await self._answer(reader)
                finally:
                    writer.transport.abort()
        except OSError:
            return
        except TimeoutError:
            self.hung.append(data)
            return
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "closed"
        self.statuses[status] = self.statuses.get(status, 0) + 1

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """The first bytes of the answer, or none: the client loses patience, as half of all do."""
        patience_s = self._random.choice((0.05, 0.5))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await reader.read(_MOST_REPLY_BYTES)
        return b""

    def _pieces(self, data: bytes) -> list[bytes]:
        if self._random.random() < 0.5:
            return [data]
        at = sorted(self._random.randrange(len(data) + 1) for _ in range(3))
        return [data[: at[0]], data[at[0] : at[1]], data[at[1] : at[2]], data[at[2] :]]


_WORDS = (
    b"\r\n", b"\n", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Connection: close\r\n",
    b"X-Forwarded-For: 1.2.3.4\r\n", b"X-Gpuward-Gateway: x\r\n", b"\x00", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"%00",
    b"HTTP/1.0", b"HTTP/2.0", b"{", b'"model":', b"\xff\xfe", b"Host: y\r\n", b" ", b":",
)  # fmt: skip


def memory_mib(*processes: psutil.Process) -> float:
    """What these processes hold alone."""
    return sum(float(one.memory_full_info().uss) for one in processes) / 2**20


def unsent_bytes(port: int) -> int:
    """What the kernel holds for a server at this port: written, and not taken by the other side yet."""
    held = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port:
            held += int(queues.partition(":")[0], 16)
    return held
