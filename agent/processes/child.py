"""One started or adopted process: notices its death, signals its group, and knows when the whole group is gone."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

from agent.processes.procfs import look, members
from agent.records import Key

_POLL_S: Final = (0.01, 0.02, 0.05, 0.1, 0.25)
_SCAN_LIMIT_S: Final = 30.0


class Child:
    """A leader of its own session and process group, watched through a pidfd.

    The pidfd works alike for our own children and for adopted ones; only the exit code of an adopted one stays unknown.
    Our own child is reaped last of all: while it is a zombie its pid, and so the number of its group, is nobody else's.
    """

    def __init__(self, pid: int, key: Key, folder: str) -> None:
        """Starts to watch.

        Raises:
            ProcessLookupError: there is no such process any more.
        """
        self.pid = pid
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self._key = key
        self._folder = folder
        self._ours = False
        self._fd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_exit)

    def terminate(self) -> None:
        """Asks the whole group to end."""
        self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        if not self.exited.is_set() or self._ours:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def clear_group(self, patience_s: float) -> tuple[int, ...]:
        """Kills what is left of the group until nothing is, or until `patience_s` has passed; returns who is left."""
        deadline = self._loop.time() + patience_s
        delays = iter(_POLL_S)
        while True:
            self._signal_group(signal.SIGKILL)
            left = await self._members()
            if self.exited.is_set() and not left:
                return ()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._loop.time() >= deadline:
                return left or (self.pid,)
            await asyncio.sleep(next(delays, _POLL_S[-1]))

    def close(self) -> None:
        """Ends the watch; the process is left as it is, or reaped when it has exited."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if self._ours:
                with suppress(ChildProcessError):
                    os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
            os.close(self._fd)
            self._fd = -1

    async def _members(self) -> tuple[int, ...]:
        """Who is left; in a thread, since a machine may have thousands of processes."""
        trusted = self._ours or not self.exited.is_set()
        async with asyncio.timeout(_SCAN_LIMIT_S):
            return await asyncio.to_thread(members, self.pid, self._key, self._folder, trust_session=trusted)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._fd)
        try:
            status = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            status = None  # adopted: somebody else's child
        if status is not None:
            self._ours = True
            self.exit_code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self.exited.set()


def start_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot: with the pid it names a process for a whole boot."""
    seen = look(pid)
    return None if seen is None else seen.start_ticks
