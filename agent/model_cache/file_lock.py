"""A lock between processes of one host: a locked file. It ends with the process that holds it."""

import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from agent.model_cache.beneath import PlaceBeneath
from agent.tasks import in_thread

_POLL_S: Final = 0.02


class LockedError(TimeoutError):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class LockBeneath:
    """A file to lock in a folder beneath another."""

    place: PlaceBeneath  # the folder
    name: str  # of the file

    def open(self) -> int:
        """Opens the file, created if it is missing; returns the descriptor. Raises as `OpenFolder`."""
        with self.place.open() as folder:
            return folder.open(self.name, os.O_RDWR | os.O_CREAT, 0o600)

    def __str__(self) -> str:
        return str(self.place.root / self.place.name / self.name)


@contextmanager
def file_lock(path: Path | LockBeneath, limit_s: float) -> Iterator[None]:
    """Holds the lock of a file, created if it is missing. Blocks for at most `limit_s`.

    Raises LockedError, or OSError if the file cannot be opened.
    """
    release = take_lock(path, limit_s)
    try:
        yield
    finally:
        release()


@asynccontextmanager
async def waited_lock(path: Path | LockBeneath, limit_s: float) -> AsyncIterator[None]:
    """As `file_lock`, with the wait in a thread. Cancelling the wait leaves no lock behind."""
    release = await in_thread(partial(take_lock, path, limit_s), lambda release: release(), f"lock {path.name}")
    try:
        yield
    finally:
        release()


def take_lock(path: Path | LockBeneath, limit_s: float) -> Callable[[], None]:
    """As `file_lock`; returns the function that releases the lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    opened = path.open() if isinstance(path, LockBeneath) else os.open(path, flags, 0o600)
    return lock_opened(opened, str(path), limit_s)


def lock_opened(opened: int, name: str, limit_s: float) -> Callable[[], None]:
    """As `take_lock`, of an open file, which is closed on failure.

    The lock belongs to the open file: a process that inherits its descriptor holds it too.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                os.close(opened)
                raise LockedError(f"another process of this host holds {name}") from error
            time.sleep(_POLL_S)
        except BaseException:
            os.close(opened)
            raise
        else:
            return lambda: os.close(opened)
