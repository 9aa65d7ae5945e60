"""A gateway on another host: what the controller believes of it, and of clients that claim to be one.

The controller has no gateway of its own here: that one would be between them, and would count as the client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, asked

pytestmark = pytest.mark.cases

SECRET = "a-long-random-text"
CLIENT, FORGED = "127.0.0.21", "203.0.113.9"
FORWARDED = {"X-Forwarded-For": FORGED, "X-Forwarded-Proto": "https", "X-Gpuward-Behind-Proxy": "1"}


async def join(url: str, token: str, name: str, **headers: str) -> int:
    """The status of a join whose connection comes from `CLIENT`."""
    connector = aiohttp.TCPConnector(local_addr=(CLIENT, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{url}/api/v1/join", json={"token": token, "name": name}, headers=headers) as answer,
    ):
        return answer.status


@asynccontextmanager
async def from_client(port: int) -> AsyncIterator[str]:
    """A way to a port whose connections come from `CLIENT`, as of another host; yields its URL."""

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(CLIENT, 0))
        try:
            await asyncio.wait(
                [asyncio.ensure_future(pipe(reader, back)), asyncio.ensure_future(pipe(there, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            back.transport.abort()
            writer.transport.abort()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Remote:
    """A gateway that reaches the controller at its port, with a secret or none."""

    def __init__(self, cluster: Cluster, name: str, dsn: str, **env: str) -> None:
        self._cluster = cluster
        self._name = name
        self.port = 0
        argv = ("gateway", "--controller", cluster.url, "--port", "0")
        cluster.start(name, *argv, GPUWARD_DATABASE_URL=dsn, **env)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def is_ready(self) -> bool:
        log = (self._cluster.folder / f"{self._name}.log").read_text()
        if "gateway serving" not in log:
            return False
        self.port = int(log.partition("port=")[2].split()[0])
        async with self._cluster.session.get(self.url + "/readyz") as answer:
            return answer.status == 200


async def test_a_remote_gateway_is_believed_by_its_secret_alone(cluster: Cluster, database: str) -> None:
    env = {"GPUWARD_GATEWAY_SECRET": SECRET, "GPUWARD_DATABASE_URL": database}
    await cluster.start_controller(GPUWARD_GATEWAY="false", **env)
    believed = Remote(cluster, "believed", database, GPUWARD_GATEWAY_SECRET=SECRET)
    wrong = Remote(cluster, "wrong", database, GPUWARD_GATEWAY_SECRET=SECRET + "-not")
    for remote in (believed, wrong):
        await cluster.until(remote.is_ready, "the gateway is ready", 60)

    async def token() -> str:
        return str((await cluster.post("/tokens", {}))["token"])

    def log() -> str:
        return (cluster.folder / "controller.log").read_text()

    # Its word on the client counts; what the client itself claims goes no further.
    assert await join(believed.url, await token(), "host-1", **FORWARDED) == 200
    assert log().count(f"peer={CLIENT}") == 1
    # Without the right secret the gateway itself is the client, and clients that name one are strangers.
    assert await join(wrong.url, await token(), "host-2", **FORWARDED) == 200
    assert await join(wrong.url, await token(), "host-3", **FORWARDED, **{"X-Gpuward-Gateway": "guessed"}) == 200
    assert log().count(f"peer={CLIENT}") == 1
    # A client's own claim goes no further, even one that has the secret.
    assert await join(believed.url, await token(), "host-4", **FORWARDED, **{"X-Gpuward-Gateway": SECRET}) == 200
    assert log().count(f"peer={CLIENT}") == 2
    # At the controller's own port a stranger is the address that it connects from.
    assert await join(cluster.url, await token(), "host-5", **FORWARDED, **{"X-Gpuward-Gateway": "guessed"}) == 200
    assert log().count(f"peer={CLIENT}") == 3
    assert FORGED not in log()

    # An agent on another host joins through it, without --advertise: requests reach it where it dialed from.
    async with from_client(believed.port) as url:
        await cluster.start_agent("gpu-1", url=url)
        await cluster.apply("m", resources={"gpus": 1})
        await cluster.running("m")
        address = (await cluster.get("/workers/gpu-1"))["status"]["proxy_address"]
        assert address.startswith(f"{CLIENT}:"), address
        for through in (believed.url, wrong.url):
            async with cluster.session.post(through + CHAT, json=asked("tokens=1")) as answer:
                assert answer.status == 200, await answer.text()
