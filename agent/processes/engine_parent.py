"""The agent's side of an engine's parent (`parent_main.py`): watches it, and takes the end that it has recorded."""

import asyncio
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.processes.procfs import read_process

_RELEASE_LIMIT_S: Final = 5.0
_BYTES: Final = 512  # as in parent_main.py


class Usage(BaseModel):
    """What the engine and the children that it has waited for have used."""

    model_config = ConfigDict(frozen=True)
    user_s: float
    system_s: float
    max_rss_kib: int


class EngineEnd(BaseModel):
    """The end of the process that an agent has started."""

    model_config = ConfigDict(frozen=True)
    pid: int  # of the engine; with `start_ticks` it identifies the process
    start_ticks: int  # its start, in the kernel's ticks since boot
    code: int  # its exit code; negative: killed by that signal
    ended_at: float  # seconds since 1970
    # the parent was signalled to end as well, as all processes are where a host shuts down, or by a forced end of
    # `gpuward up`
    asked: bool
    oom_kills: bool  # the kernel killed a process of this host for want of memory within the last 20 seconds
    usage: Usage | None = None  # None until the agent has released the parent


def reserve_record(path: Path) -> int:
    """Makes an empty record with its space; returns its descriptor, which the caller closes.

    A full disk does not prevent the start: there may be space by the time of the end.

    Raises:
        OSError: it cannot be made.
    """
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        os.write(file, b" " * _BYTES)
    return file


@dataclass(frozen=True, slots=True)
class EndRecord:
    """Where the end of one process is recorded."""

    path: Path
    pid: int | None
    start_ticks: int | None

    def read(self) -> EngineEnd | None:
        """Its end; None: it is unknown, since its parent died before it or never was."""
        try:
            with self.path.open("rb") as file:
                end = EngineEnd.model_validate_json(file.read(_BYTES).strip() or b"null")
        except (OSError, ValidationError):
            return None
        return end if (end.pid, end.start_ticks) == (self.pid, self.start_ticks) else None

    def remove(self) -> None:
        """Removes it; a parent that still waits to be released then ends as well."""
        with suppress(OSError):
            self.path.unlink()


class EngineParent:
    """A running parent."""

    def __init__(self, pid: int, start_ticks: int, fd: int) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self._fd = fd

    @classmethod
    def find(cls, pid: int | None, start_ticks: int | None) -> Self | None:
        """The parent of this pid and start; None: it has ended."""
        if pid is None or start_ticks is None:
            return None
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        process = read_process(pid)
        if process is None or process.zombie or process.start_ticks != start_ticks:
            os.close(fd)
            return None
        return cls(pid, start_ticks, fd)

    @property
    def is_alive(self) -> bool:
        """Whether it runs. So long it keeps the zombie of its engine, and thus the engine's pid."""
        if self._fd < 0:
            return False
        ended = select.poll()  # `select` knows no descriptor above 1023
        ended.register(self._fd, select.POLLIN)
        return not ended.poll(0)

    async def release(self) -> None:
        """Lets it end, after which its record is complete. What does not end in time is killed."""
        if self._fd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGUSR1)
        if not await self._has_ended(_RELEASE_LIMIT_S):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)
            await self._has_ended(_RELEASE_LIMIT_S)
        self.close()

    def close(self) -> None:
        """Ends the watch; reaps the parent if it has ended, and does nothing else to it."""
        if self._fd >= 0:
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
            os.close(self._fd)
            self._fd = -1

    async def _has_ended(self, limit_s: float) -> bool:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, ended.set)
        try:
            async with asyncio.timeout(limit_s):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._fd)
        return True
