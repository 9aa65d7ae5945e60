"""Free loopback ports for the engines; no two agents of a host allocate the same port.

Between the choice of a port and the engine's bind, another agent could choose the same port, and then take the first
engine's answers for those of its own engine. So each port is locked while the engine lives.
"""

import random
import socket
from typing import Final

from agent.errors import SpawnError
from agent.processes.host_locks import HostLocks

# Below the kernel's default range for outgoing connections (32768 and up), which could use a port at any time.
FIRST_PORT: Final = 18_000
LAST_PORT: Final = 31_999
_TRIES: Final = 2_000


class PortAllocator(HostLocks):
    """The ports that one agent has locked."""

    def __init__(self, rng: random.Random | None = None) -> None:
        super().__init__("port")
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret

    def allocate(self) -> int:
        """Chooses and locks a free port. Raises SpawnError."""
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


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
