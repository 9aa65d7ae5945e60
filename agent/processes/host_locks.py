"""Locks of numbers that only one agent of a host may use: ports, and uids of engines.

Each lock is an abstract UNIX socket named after its number. The kernel lets one process of a network namespace bind
that name, and frees it on its death.
"""

import errno
import socket
from collections.abc import Collection


class HostLocks:
    """The numbers that one agent has locked. `kind`: `port` or `uid`, as in agents of other versions."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._locks: dict[int, socket.socket] = {}

    def lock(self, number: int) -> bool:
        """False if this agent or another has locked the number. Raises OSError if no socket can be opened."""
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0gpuward-engine-{self._kind}-{number}")
        except OSError as error:
            lock.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._locks[number] = lock
        return True

    def release(self, number: int) -> None:
        if (lock := self._locks.pop(number, None)) is not None:
            lock.close()

    def keep(self, numbers: Collection[int]) -> None:
        """Releases all other numbers."""
        for number in self._locks.keys() - set(numbers):
            self.release(number)

    def close(self) -> None:
        self.keep(())
