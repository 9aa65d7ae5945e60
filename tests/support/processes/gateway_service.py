"""A gateway as a service whose port belongs to a service manager: the socket stays while gateways come and go."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

from support.processes.cluster import Cluster

# As systemd does it: the socket is descriptor 3, and LISTEN_PID names the process that may take it.
_PASS_SOCKET = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3);"
    " os.execve(sys.argv[2], sys.argv[2:], {**os.environ, 'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'})"
)


class GatewayService:
    """The socket, and the gateways that it is passed to.

    Args:
        cluster: whose controller the gateways find by its data folder. Its processes are ended with the others.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.listening = socket.create_server(("127.0.0.1", cluster.port), backlog=1024)
        cluster.port = self.listening.getsockname()[1]
        self._groups: list[int] = []

    def start(self, name: str, *argv: str, **env: str) -> subprocess.Popen[bytes]:
        """Starts one with the socket; its log has the name."""
        cluster, fd = self.cluster, self.listening.fileno()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GPUWARD_")}
        gateway = (sys.executable, "-P", "-m", "cli", "gateway", "--data-dir", str(cluster.data_dir), *argv)
        with (cluster.folder / f"{name}.log").open("ab") as log:
            cluster.processes[name] = subprocess.Popen(
                [sys.executable, "-c", _PASS_SOCKET, str(fd), *gateway],
                env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), **env},
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.append(cluster.processes[name].pid)
        return cluster.processes[name]

    async def stop(self, name: str, limit_s: float = 20.0) -> int:
        """As `systemctl stop` does: SIGTERM to the first process alone; returns its exit code."""
        process = self.cluster.processes[name]
        process.send_signal(signal.SIGTERM)
        await self.cluster.until(lambda: process.poll() is not None, f"{name} ends", limit_s)
        return process.returncode

    def close(self) -> None:
        """Ends the socket and what still drains."""
        self.listening.close()
        for pid in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
