"""A second gateway before the same controller, on a port of its own."""

import contextlib
import socket
from typing import Any

import aiohttp

from controller.serving import SOCKET_NAME
from support.processes.cluster import Cluster

CHAT = "/v1/chat/completions"


def asked(told: str, **more: Any) -> dict[str, Any]:
    """A request to the model `m`, whose simulated engine does as it is told."""
    return {"model": "m", "messages": [{"role": "user", "content": f"[simulate {told}]"}], **more}


async def with_a_model(cluster: Cluster, **env: str) -> None:
    """A controller, an agent, and the model `m`."""
    cluster.use_rig()
    await cluster.start_controller(**env)
    await cluster.start_agent("gpu-1")
    await cluster.apply("m", resources={"gpus": 1})
    await cluster.running("m")


class Another:
    """The gateway, of one or several processes."""

    def __init__(
        self, cluster: Cluster, dsn: str = "", *, drain: str = "3s", processes: int = 1, name: str = "gateway"
    ) -> None:
        self.cluster = cluster
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        api = str(cluster.data_dir / SOCKET_NAME)
        argv = ("gateway", "--controller", api, "--port", str(self.port), "--drain", drain)
        argv += ("--processes", str(processes))
        cluster.start(name, *argv, GPUWARD_DATABASE_URL=dsn or embedded_dsn(cluster))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def is_ready(self) -> bool:
        try:
            async with self.cluster.session.get(self.url + "/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def status(self, path: str = "/readyz") -> int:
        """Of a GET over a connection of its own; 0: none could be made."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def stream(self, told: str) -> tuple[bytes, bool]:
        """What a streamed answer brings, and whether it ends as it should."""
        got = b""
        async with self.cluster.session.post(self.url + CHAT, json=asked(told, stream=True)) as answer:
            assert answer.status == 200, await answer.text()
            with contextlib.suppress(aiohttp.ClientPayloadError):
                async for piece in answer.content.iter_any():
                    got += piece
                return got, True
        return got, False


def embedded_dsn(cluster: Cluster) -> str:
    """The database of a controller that has its own, by its socket."""
    return cluster.gateway_parent().environ()["GPUWARD_DATABASE_URL"]
