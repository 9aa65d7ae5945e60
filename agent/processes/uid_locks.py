"""Uids that engines run as: no two agents of a host give the same one.

Between the choice of a uid and the engine's start, another agent could choose it, and at the end each kills what runs
as its uid. So each is locked like a port (`ports.py`), as long as its instance lives.
"""

import errno
import socket
from collections.abc import Collection


class UidLocks:
    """The uids that one agent has locked."""

    def __init__(self) -> None:
        self._locks: dict[int, socket.socket] = {}

    def lock(self, uid: int) -> bool:
        """Locks a uid; False if another agent has locked it.

        Raises:
            OSError: no socket can be opened.
        """
        if uid in self._locks:
            return True
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0gpuward-engine-uid-{uid}")
        except OSError as error:
            lock.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._locks[uid] = lock
        return True

    def keep(self, uids: Collection[int]) -> None:
        """Unlocks all others."""
        for uid in self._locks.keys() - set(uids):
            self._locks.pop(uid).close()

    def close(self) -> None:
        """Unlocks all."""
        self.keep(())
