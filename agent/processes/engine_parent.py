"""The agent's side of an engine's parent (`parent_main.py`): watches it, and takes the end that it has recorded."""

import asyncio
import os
import select
import signal
from contextlib import suppress
from typing import Final, Self

from agent.processes.procfs import read_process

_RELEASE_LIMIT_S: Final = 5.0


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
