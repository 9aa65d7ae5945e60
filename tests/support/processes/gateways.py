"""A second gateway before the same controller, on a port of its own."""

import socket

import aiohttp

from controller.api_socket import FILE_NAME
from support.processes.cluster import Cluster


class Another:
    """The gateway process."""

    def __init__(self, cluster: Cluster, dsn: str = "", *, drain: str = "3s") -> None:
        self.cluster = cluster
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        api = str(cluster.data_dir / FILE_NAME)
        argv = ("gateway", "--controller", api, "--port", str(self.port), "--drain", drain)
        cluster.start("gateway", *argv, GPUWARD_DATABASE_URL=dsn or embedded_dsn(cluster))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def is_ready(self) -> bool:
        try:
            async with self.cluster.session.get(self.url + "/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


def embedded_dsn(cluster: Cluster) -> str:
    """The database of a controller that has its own, by its socket."""
    return cluster.gateway().environ()["GPUWARD_DATABASE_URL"]
