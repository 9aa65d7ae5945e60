"""Free loopback ports for the engines; no two agents of a host allocate the same port.

Between the choice of a port and the engine's bind, another agent could choose the same port. It would then take the
first engine's answers for its own engine's. So each port is locked, as long as the engine lives, by an abstract UNIX
socket named after it: the kernel lets one process of a network namespace bind that name, and frees it on its death.
"""

import errno
import random
import socket
from typing import Final

from agent.errors import SpawnError

# Below the kernel's default range for outgoing connections (32768 and up), which could use a port at any moment.
FIRST_PORT: Final = 18_000
LAST_PORT: Final = 31_999
_TRIES: Final = 2_000


class PortAllocator:
    """The ports that one agent has locked."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._locks: dict[int, socket.socket] = {}

    def allocate(self) -> int:
        """Chooses and locks a free port.

        Raises:
            SpawnError: no free port was found, or no socket can be opened.
        """
        try:
            for _ in range(_TRIES):
                port = self._rng.randint(FIRST_PORT, LAST_PORT)
                if self.lock(port):
                    if _is_free(port):
                        return port
                    self.release(port)
        except OSError as error:
            raise SpawnError(f"no port can be locked: {error}") from error
        raise SpawnError(f"no free port between {FIRST_PORT} and {LAST_PORT} on this host")

    def lock(self, port: int) -> bool:
        """Locks a known port, such as an adopted engine's; False if another agent has locked it."""
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0gpuward-engine-port-{port}")
        except OSError as error:
            lock.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._locks[port] = lock
        return True

    def release(self, port: int) -> None:
        """Unlocks a port; does nothing if it is not locked here."""
        lock = self._locks.pop(port, None)
        if lock is not None:
            lock.close()

    def close(self) -> None:
        for port in tuple(self._locks):
            self.release(port)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
