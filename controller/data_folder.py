"""Locks the data folder, because two controllers would replace each other's `client.env`, socket and keys."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "controller.lock"


class DataFolderError(Exception):
    """The data folder cannot be used; the message has the reason and what to do."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks a data folder for this process; the kernel releases the lock when the process ends. Blocks.

    Raises:
        DataFolderError: another controller uses the folder, or it cannot be written.
    """
    file = folder / LOCK_FILE
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataFolderError(
            f"{file} cannot be written: {error.strerror or error}; make room and rights there, or use --data-dir"
        ) from error
    try:
        _take(lock, folder)
        yield
    finally:
        os.close(lock)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "another process"
        raise DataFolderError(
            f"the data folder {folder} is in use by process {holder}: stop that controller first, "
            "or choose another folder by --data-dir"
        ) from error
    except OSError as error:  # such as a network disk without locks
        raise DataFolderError(
            f"the data folder {folder} cannot be locked: {error.strerror or error}; "
            "choose one on a local disk by --data-dir"
        ) from error
    with suppress(OSError):  # only the message needs the number
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
