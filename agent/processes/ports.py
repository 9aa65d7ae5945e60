"""Free loopback ports for the engines, never the same one twice on a host.

Between the choice of a port and the engine's bind, another engine's agent could choose it too, and would then take the
stranger's answers for its own engine's. So each choice is held, as long as the engine lives, by an abstract UNIX socket
of the port's name: the kernel lets one process of a network namespace have it, and takes it back when that one dies.
"""

import errno
import random
import socket
from typing import Final

from agent.errors import SpawnError

# Below the kernel's default range for outgoing connections (32768 and up), which would take them at any moment.
_FIRST: Final = 18_000
_LAST: Final = 31_999
_TRIES: Final = 2_000


class PortBook:
    """The ports that one agent holds."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._held: dict[int, socket.socket] = {}

    def take(self) -> int:
        """Chooses and holds a port on which nobody listens.

        Raises:
            SpawnError: none was found.
        """
        for _ in range(_TRIES):
            port = self._rng.randint(_FIRST, _LAST)
            if self.hold(port):
                if _nobody_listens(port):
                    return port
                self.release(port)
        raise SpawnError(f"no free port between {_FIRST} and {_LAST} on this host")

    def hold(self, port: int) -> bool:
        """Holds a known port (an adopted engine's); False if another holds it."""
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0gpuward-engine-port-{port}")
        except OSError as error:
            holder.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._held[port] = holder
        return True

    def release(self, port: int) -> None:
        """Gives a port back; one that is not held is none of our business."""
        holder = self._held.pop(port, None)
        if holder is not None:
            holder.close()

    def close(self) -> None:
        """Gives all back."""
        for port in tuple(self._held):
            self.release(port)


def _nobody_listens(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
