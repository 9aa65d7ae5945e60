"""The agent's side of an engine's parent (`parent_main.py`): its watch, and its record of the engine's end.

The record is next to the log and belongs to the agent, also where engines run as accounts of their own. Its space is
reserved before the start, so that an end is recorded on a full disk too.
"""

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
    """Resources used by the engine and by children that it has waited for."""

    model_config = ConfigDict(frozen=True)
    user_s: float
    system_s: float
    max_rss_kib: int


class EngineEnd(BaseModel):
    """The end of an engine."""

    model_config = ConfigDict(frozen=True)
    pid: int  # of the engine; with `start_ticks` it identifies the process
    start_ticks: int  # in the kernel's ticks since boot
    code: int  # its exit code; negative: killed by that signal
    ended_at: float  # seconds since 1970
    asked: bool  # the parent got SIGTERM too, as at a host's shutdown or a forced end of `gpuward up`
    oom_kills: bool  # the kernel killed a process of the host for lack of memory within the last 20 seconds
    usage: Usage | None = None  # None until the agent has released the parent


def reserve_record(path: Path) -> int:
    """Creates an empty record and reserves its space; returns the descriptor. Raises OSError.

    A full disk does not prevent the start: the disk may have space at the end.
    """
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        os.write(file, b" " * _BYTES)
    return file


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The record of one process's end."""

    path: Path
    pid: int | None
    start_ticks: int | None

    def read(self) -> EngineEnd | None:
        """None if the end is unknown, since the parent died first or never existed."""
        try:
            with self.path.open("rb") as file:
                end = EngineEnd.model_validate_json(file.read(_BYTES).strip() or b"null")
        except (OSError, ValidationError):
            return None
        return end if (end.pid, end.start_ticks) == (self.pid, self.start_ticks) else None

    def remove(self) -> None:
        """Ends a parent that still waits for its release, too."""
        with suppress(OSError):
            self.path.unlink()


class EngineParent:
    """The parent of one engine."""

    def __init__(self, pid: int, start_ticks: int, fd: int) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self._fd = fd

    @classmethod
    def find(cls, pid: int | None, start_ticks: int | None) -> Self | None:
        """None if the parent has ended."""
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
        """A live parent keeps the zombie of its engine, and thus the engine's pid."""
        if self._fd < 0:
            return False
        ended = select.poll()  # `select` knows no descriptor above 1023
        ended.register(self._fd, select.POLLIN)
        return not ended.poll(0)

    async def release(self) -> None:
        """Lets the parent end, which completes its record; kills it after a limit."""
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
        """Ends the watch, and reaps an ended parent."""
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
