"""Figures of a daemon about its own process: CPU, memory, open files, and garbage collection."""

import gc
import os
import resource
import time
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

_PAGE_BYTES: Final = resource.getpagesize()
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start of the process, or now. Seconds and bytes; None: unknown on this system."""

    cpu_s: _Seconds
    memory_bytes: _Count | None = None
    open_files: _Count | None = None
    most_files: _Count | None = None
    gc_collections: _Count = 0
    gc_s: _Seconds = 0.0
    disk_free_bytes: _Count | None = None  # where its data folder is
    disk_bytes: _Count | None = None


class GcWatch:
    """Counts collections and their time. Collections stop the process."""

    def __init__(self) -> None:
        self.collections = 0
        self.seconds = 0.0
        self._started = 0.0
        gc.callbacks.append(self._note)

    def close(self) -> None:
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
        else:
            self.collections += 1
            self.seconds += time.perf_counter() - self._started


def read_figures(watch: GcWatch, data_folder: str | os.PathLike[str] | None = None) -> ProcessFigures:
    """The figures of this process. It takes about 0.1 ms, and reads only /proc and the numbers of the file system."""
    free, size = _disk(data_folder)
    return ProcessFigures(
        cpu_s=time.process_time(),
        memory_bytes=_memory_bytes(),
        open_files=_open_files(),
        most_files=_most_files(),
        gc_collections=watch.collections,
        gc_s=watch.seconds,
        disk_free_bytes=free,
        disk_bytes=size,
    )


def _memory_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return None  # not Linux


def _open_files() -> int | None:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return None


def _most_files() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _disk(folder: str | os.PathLike[str] | None) -> tuple[int | None, int | None]:
    if folder is None:
        return None, None
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None, None
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
