"""Clients send without end what is cheap to send and dear to read; others are served, and memory stays bounded.

Each attack has four connections that send as fast as they are read. Meanwhile an honest client asks anew, over a
connection of its own each time.
"""

import asyncio
import json
import time
from dataclasses import dataclass

import aiohttp
import msgspec
import psutil
import pytest

from rig.agent_messages import hello
from schemas.wire import CONNECT_PATH, SPOKEN
from support.network.websocket_frames import CONTINUATION, PING, PONG, TEXT, deflated, frame
from support.processes.cluster import Cluster
from support.processes.gateways import with_a_model
from support.processes.unending_senders import Sends, send

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]

HELD_S = 4.0
MOST_TRIES = 4
LEAST_ANSWERS = 4  # within that time; a loop that one client holds gives one or two
MOST_MORE_MIB = 96  # of each daemon
EMPTY = frame(CONTINUATION, last=False)
BEGUN = frame(TEXT, last=False)
DROPPED = json.dumps({"type": "samples", "sent_s": 1.0, "periods": [{"seq": 1}] * 10_000}).encode()
MIB = 2**20


@dataclass
class Doors:
    """Where clients come in, and what they show."""

    cluster: Cluster
    inference: str
    viewer: str
    credential: str  # of a worker without an agent

    def request(self, path: str, key: str = "", method: str = "GET", *lines: str) -> bytes:
        """A head without a body."""
        shown = (f"Authorization: Bearer {key}",) if key else ()
        text = "\r\n".join((f"{method} {path} HTTP/1.1", "Host: x", *shown, *lines))
        return text.encode() + b"\r\n\r\n"

    def chunked(self, path: str, key: str) -> bytes:
        """A head whose body comes in chunks."""
        return self.request(path, key, "POST", "Transfer-Encoding: chunked", "Content-Type: application/json")

    def socket(self, path: str, key: str, *lines: str) -> bytes:
        """The head that asks for a WebSocket."""
        fixed = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        return self.request(path, key, "GET", *fixed, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *lines)


@pytest.fixture
async def doors(cluster: Cluster) -> Doors:
    """A cluster with a model, and keys of each kind."""
    await with_a_model(cluster)
    keys = [(await cluster.post("/keys", {"role": role}))["key"] for role in ("inference", "viewer")]
    token = (await cluster.post("/tokens", {}))["token"]
    credential = (await cluster.post("/join", {"token": token, "name": "silent"}))["credential"]
    return Doors(cluster, *keys, credential)


async def answers(cluster: Cluster, path: str) -> tuple[int, float]:
    """How many requests were answered in the time, and the longest wait in seconds."""
    count, worst_s, until = 0, 0.0, time.monotonic() + HELD_S
    while (began := time.monotonic()) < until:
        limit = aiohttp.ClientTimeout(total=30)
        async with (
            aiohttp.ClientSession(headers=cluster.session.headers) as session,
            session.get(cluster.url + path, timeout=limit) as response,
        ):
            assert response.status == 200
        count, worst_s = count + 1, max(worst_s, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return count, worst_s


def sizes(cluster: Cluster) -> dict[str, float]:
    """MiB of each daemon."""
    daemons = {name: psutil.Process(cluster.processes[name].pid) for name in ("controller", "gpu-1")}
    daemons["gateway"] = cluster.gateway()
    return {name: process.memory_info().rss / MIB for name, process in daemons.items()}


async def withstands(doors: Doors, port: int, attacks: dict[str, Sends], path: str = "/api/v1/workers") -> None:
    """Each attack in turn."""
    for name, sends in attacks.items():
        before = sizes(doors.cluster)
        for _ in range(MOST_TRIES):  # a busy machine may complete no handshake in the time of one
            (count, worst_s), sent = await asyncio.gather(answers(doors.cluster, path), send(port, sends, HELD_S))
            if sent.connections:
                break
        more = {daemon: size - before[daemon] for daemon, size in sizes(doors.cluster).items()}
        print(name, count, f"{worst_s:.2f} s", {d: round(mib) for d, mib in more.items()}, sent)  # noqa: T201
        assert sent.connections >= 1, f"{name}: no connection was made"
        assert count >= LEAST_ANSWERS, f"{name}: an honest client got {count} answers in {HELD_S} s"
        assert max(more.values()) < MOST_MORE_MIB, f"{name}: {more}"
    for daemon in ("controller", "gpu-1"):
        assert "Traceback" not in (doors.cluster.folder / f"{daemon}.log").read_text()
    assert await doors.cluster.worker_is("gpu-1", "ready")


async def test_requests_and_bodies(doors: Doors) -> None:
    admin = doors.cluster.session.headers["Authorization"].removeprefix("Bearer ")
    letters, extension = b"1\r\nx\r\n" * 10_000, b"1;" + b"a" * 60_000 + b"\r\nx\r\n"
    models = doors.request("/v1/models", doors.inference) * 2_000
    api = doors.request("/api/v1/workers", admin)
    chat = doors.chunked("/v1/chat/completions", doors.inference)
    apply = doors.chunked("/api/v1/apply", admin)
    attacks = {
        "models": Sends(b"", models),
        "health": Sends(b"", doors.request("/healthz") * 2_000),
        "the API": Sends(b"", api * 2_000),
        "models behind the API": Sends(api, models),
        "a body letter by letter": Sends(chat, letters),
        "a body of extensions": Sends(chat, extension),
        "a manifest letter by letter": Sends(apply, letters),
        "a manifest of extensions": Sends(apply, extension),
    }
    await withstands(doors, doors.cluster.port, attacks)


async def test_requests_to_an_agent(doors: Doors) -> None:
    attacks = {
        "health": Sends(b"", doors.request("/healthz") * 2_000),
        "engines": Sends(b"", doors.request("/engines/model/v1/models") * 2_000),
        "a body letter by letter": Sends(doors.chunked("/engines/model/v1/completions", ""), b"1\r\nx\r\n" * 10_000),
    }
    await withstands(doors, doors.cluster.proxy_port("gpu-1"), attacks)


async def test_frames_of_a_dashboard(doors: Doors) -> None:
    live = doors.socket("/api/v1/live", doors.viewer)
    packed = doors.socket("/api/v1/live", doors.viewer, "Sec-WebSocket-Extensions: permessage-deflate")
    bomb = frame(TEXT, deflated(b"a" * 10 * MIB), compressed=True)
    nested = frame(TEXT, deflated(b"[" * 16_000), compressed=True)
    attacks = {
        "pings": Sends(live, frame(PING) * 10_000, upgrade=True),
        "pongs": Sends(live, frame(PONG) * 10_000, upgrade=True),
        "empty messages": Sends(live, frame(TEXT) * 10_000, upgrade=True),
        "empty fragments": Sends(live + BEGUN, EMPTY * 10_000, upgrade=True),
        "pings between fragments": Sends(live + BEGUN, (EMPTY + frame(PING)) * 5_000, upgrade=True),
        "a message that grows when unpacked": Sends(packed, bomb, upgrade=True),
        "nested messages, packed": Sends(packed, nested * 1_000, upgrade=True),
    }
    await withstands(doors, doors.cluster.port, attacks)


async def test_frames_of_an_agent(doors: Doors) -> None:
    socket = doors.socket(CONNECT_PATH, doors.credential, f"Sec-WebSocket-Protocol: {', '.join(SPOKEN.names())}")
    welcome = socket + frame(TEXT, msgspec.json.encode(hello(boot_id="boot-x")).decode().encode())
    attacks = {
        "fragments before the hello": Sends(socket + BEGUN, EMPTY * 10_000, upgrade=True),
        "fragments": Sends(welcome + BEGUN, EMPTY * 10_000, upgrade=True),
        "letters": Sends(welcome + BEGUN, frame(CONTINUATION, b"x", last=False) * 10_000, upgrade=True),
        "pongs": Sends(welcome, frame(PONG) * 10_000, upgrade=True),
        "periods that are none": Sends(welcome, frame(TEXT, DROPPED) * 10, upgrade=True),
    }
    await withstands(doors, doors.cluster.port, attacks)
