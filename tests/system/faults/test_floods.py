"""One address holds 1,100 connections to a daemon that may open 1,024 files; other clients of it are served."""

import asyncio
import time

import aiohttp
import psutil
import pytest

from http1.daemon.open_files import raise_file_limit
from support.processes.cluster import Cluster
from support.processes.flood import Flood

pytestmark = pytest.mark.cases

COUNT = 1_100
HELD_S = 4.0
# The hard limit is 1,024 files, the soft one lower: the daemon raises it.
FEW_FILES = ("sh", "-c", 'ulimit -Sn 256; ulimit -Hn 1024; exec "$@"', "sh")
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20
WRONG_CREDENTIAL = (
    b"GET /api/v1/agents/connect HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(autouse=True)
def many_files() -> None:
    """The flood needs files of its own."""
    assert raise_file_limit() > 2 * COUNT


def body_of(path: str, key: str) -> bytes:
    """A complete head and the first byte of a long body."""
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", "Content-Length: 60000")
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n{"


async def served(cluster: Cluster, times: int = 15) -> float:
    """Each request, over a connection of its own, is answered; the longest in seconds."""
    worst = 0.0
    for _ in range(times):
        began = time.monotonic()
        async with (
            aiohttp.ClientSession(headers=cluster.session.headers) as session,
            session.get(f"{cluster.url}/api/v1/workers", timeout=aiohttp.ClientTimeout(total=20)) as response,
        ):
            assert response.status == 200
        worst = max(worst, time.monotonic() - began)
        await asyncio.sleep(HELD_S / times)
    return worst


async def chat(cluster: Cluster, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    async with cluster.session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()


async def agent_sees(cluster: Cluster, deployment: str) -> None:
    """Heartbeats go on, and commands reach the agent."""
    await cluster.apply(deployment, resources={"gpus": 1, "gpu_memory": "1GiB"})
    await cluster.running(deployment)
    assert await cluster.worker_is("gpu-1", "ready")


def open_files(cluster: Cluster, process: str) -> int:
    of = cluster.gateway() if process == "gateway" else psutil.Process(cluster.processes[process].pid)
    return of.num_fds()


@pytest.mark.timeout(300)
async def test_the_gateway_and_its_controller(cluster: Cluster) -> None:
    cluster.prefix = FEW_FILES
    await cluster.start_controller()
    cluster.prefix = ()
    await cluster.start_agent("gpu-1")
    key = (await cluster.post("/keys", {"role": "inference"}))["key"]
    await cluster.apply("model", resources={"gpus": 1})
    await cluster.running("model")
    floods = {
        "half-heads": Flood(cluster.port, COUNT, HALF_HEAD, drip=b"x-y: z\r\n"),
        "nothing": Flood(cluster.port, COUNT, b""),
        "unread": Flood(cluster.port, COUNT, UNREAD, reads=False),
        "readiness": Flood(cluster.port, COUNT, UNREAD.replace(b"/openapi.json", b"/readyz"), reads=False),
        "credentials": Flood(cluster.port, COUNT, WRONG_CREDENTIAL, reads=False),
        "joins": Flood(cluster.port, COUNT, body_of("/api/v1/join", "x"), drip=b" "),
        "bodies-without-a-key": Flood(cluster.port, COUNT, body_of("/v1/chat/completions", "x"), drip=b" "),
        "bodies-with-a-key": Flood(cluster.port, COUNT, body_of("/v1/chat/completions", key), drip=b" "),
    }
    for name, flood in floods.items():
        async with flood.held():
            if name == "bodies-with-a-key":
                await asyncio.sleep(10)  # a younger body gives way to nothing
            print(name, await served(cluster), open_files(cluster, "gateway"), open_files(cluster, "controller"))  # noqa: T201
            await agent_sees(cluster, name)
            await chat(cluster, "model")
            assert open_files(cluster, "gateway") < 900
            assert open_files(cluster, "controller") < 900
    log = (cluster.folder / "controller.log").read_text()
    assert "limit of open files is low" in log
    assert 1 <= log.count("connections are saturated") <= 1 + log.count("connected") * 60
    assert "Traceback" not in log
    assert log.count("handshake refused") <= 2, "one line a minute"
    async with cluster.session.get("/metrics") as response:
        text = await response.text()
    closed = next(
        line for line in text.splitlines() if line.startswith('gpuward_gateway_connections_closed_total{reason="bound"')
    )
    assert float(closed.split()[-1]) > COUNT


async def test_the_agent(cluster: Cluster) -> None:
    await cluster.start_controller()
    cluster.prefix = FEW_FILES
    await cluster.start_agent("gpu-1")
    await cluster.apply("model", resources={"gpus": 1})
    await cluster.running("model")
    port = cluster.proxy_port("gpu-1")
    floods = {
        "half-heads": Flood(port, COUNT, HALF_HEAD, drip=b"x-y: z\r\n"),
        "unread": Flood(port, COUNT, b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 20, reads=False),
        "bodies": Flood(port, COUNT, body_of("/engines/model", "x"), drip=b" "),
    }
    for name, flood in floods.items():
        async with flood.held():
            began = time.monotonic()
            while time.monotonic() - began < HELD_S:
                await chat(cluster, "model")
            await agent_sees(cluster, name)
            assert open_files(cluster, "gpu-1") < 900
    log = (cluster.folder / "gpu-1.log").read_text()
    assert "limit of open files is low" in log
    assert "connections are saturated" in log
    assert "Traceback" not in log
