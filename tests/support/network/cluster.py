"""A cluster on hosts with addresses of their own: database, controller and agents."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from support.network import forward
from support.network.hosts import Hosts
from support.processes.cluster import Cluster

DATABASE, CONTROLLER = "database", "controller"
_PORT = 5432
_END_S = 10


class ClusterOnHosts(Cluster):
    """The database answers on a host of its own; this process calls the API by a file, past the network.

    Args:
        folder: of all files.
        hosts: `database`, `controller`, and one of each agent's name.
        dsn: of the database, on a Unix socket.
    """

    def __init__(self, folder: Path, hosts: Hosts, dsn: str) -> None:
        super().__init__(folder)
        self.hosts = hosts
        self._dsn = dsn
        self._api = folder / "api.sock"
        self._forwards: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *argv: str, **env: str) -> None:
        self.prefix = self.hosts.prefix(name)
        if name == CONTROLLER:
            argv, env = (*argv, "--host", "0.0.0.0"), {**env, "GPUWARD_DATABASE_URL": self._database_url()}  # noqa: S104
        super().start(name, *argv, **env)

    @property
    def url(self) -> str:
        return f"http://{self.hosts.address(CONTROLLER)}:{self.port}"

    def _open_session(self, values: Mapping[str, str]) -> aiohttp.ClientSession:
        self._forward(CONTROLLER, str(self._api), f"127.0.0.1:{self.port}")
        return super()._open_session(values)

    def _connector(self) -> aiohttp.BaseConnector:
        return aiohttp.UnixConnector(str(self._api))

    def _database_url(self) -> str:
        """Its URL on the network; at the first call the way to it is opened."""
        parts = urlsplit(self._dsn)
        query = parse_qs(parts.query)
        address = f"{self.hosts.address(DATABASE)}:{_PORT}"
        if not any(one.args[-2] == address for one in self._forwards):  # type: ignore[index]
            self._forward(DATABASE, address, f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}")
        user = parts.netloc.rpartition("@")[0] or query["user"][0]
        return f"postgresql://{user}@{address}{parts.path}"

    def _forward(self, host: str, listen: str, target: str) -> None:
        argv: list[Any] = [*self.hosts.prefix(host), sys.executable, "-P", forward.__file__, listen, target]
        self._forwards.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))

    async def aclose(self) -> None:
        await super().aclose()
        for one in self._forwards:
            one.kill()
            one.wait(_END_S)
