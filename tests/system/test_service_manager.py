"""Controller and agent under a service manager: what each says, and that none of its children speaks for it."""

import asyncio
import contextlib
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.cluster import Cluster

pytestmark = pytest.mark.cases
WATCHDOG_S = 0.5


class Manager:
    """A service manager: reads what services say, at once, with the pid that the kernel vouches for."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}"}
        self.heard: list[tuple[str, int]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        self._socket.settimeout(0.05)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                data, ancillary, *_ = self._socket.recvmsg(256, socket.CMSG_SPACE(12))
                ((_, _, credentials),) = ancillary
                self.heard.append((data.decode(), struct.unpack("3i", credentials)[0]))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    async def hears(self, cluster: Cluster, *states: str) -> None:
        """Waits until the newest message of each of these states is younger than this call."""
        before = len(self.heard)
        for state in states:
            await cluster.until(lambda state=state: state in dict(self.heard[before:]), f"{state} is said", 60)


@pytest.fixture
def managers(tmp_path: Path) -> Iterator[tuple[Manager, Manager]]:
    made = Manager(tmp_path / "controller"), Manager(tmp_path / "agent")
    yield made
    for manager in made:
        manager.close()


async def test_it_hears_when_each_is_ready_lives_hangs_and_stops(
    cluster: Cluster, managers: tuple[Manager, Manager]
) -> None:
    of_controller, of_agent = managers
    await cluster.start_controller(**of_controller.env)
    await cluster.start_agent("w", **of_agent.env)
    await cluster.apply("chat", engine="simulated", resources={"gpus": 1, "gpu_memory": "1GiB"})
    await cluster.running("chat")
    (engine,) = cluster.engines().values()
    assert not set(of_agent.env) & set(engine.environ())
    for manager in managers:
        assert "READY=1" in dict(manager.heard)
        await manager.hears(cluster, "WATCHDOG=1")
    pids = cluster.processes["controller"].pid, cluster.processes["w"].pid

    cluster.signal("controller", signal.SIGSTOP)
    await asyncio.sleep(WATCHDOG_S)
    before = len(of_controller.heard)
    await asyncio.sleep(3 * WATCHDOG_S)
    assert len(of_controller.heard) == before, "one that hangs shows no sign of life"
    cluster.signal("controller", signal.SIGCONT)
    await of_controller.hears(cluster, "WATCHDOG=1")

    for name, manager in (("w", of_agent), ("controller", of_controller)):
        cluster.signal(name, signal.SIGTERM)
        await cluster.until(lambda manager=manager: "STOPPING=1" in dict(manager.heard), f"{name} stops", 60)
    assert [{pid for _, pid in manager.heard} for manager in managers] == [{pid} for pid in pids]
