"""The process group of one engine: watches its leader, signals the group, and kills it until nothing is left."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

import structlog

from agent.process_records import ProcessKey
from agent.processes.cgroups import Cgroup, oom_message
from agent.processes.procfs import group_members, is_alive
from schemas.wire import ExitReason

_POLL_S: Final = (0.01, 0.02, 0.05, 0.1, 0.25)
_SCAN_LIMIT_S: Final = 30.0

log = structlog.get_logger()


class ProcessGroup:
    """A leader with its own session and process group, watched through a pidfd.

    The pidfd works for the agent's own children and for adopted processes; an adopted one's exit code stays unknown.
    An own child is reaped last: while it is a zombie, its pid, and thus the group's number, cannot be reused.
    """

    def __init__(
        self, pid: int, key: ProcessKey, folder: str, cgroup: Cgroup | None = None, *, uid: int | None = None
    ) -> None:
        """Starts to watch.

        Args:
            pid: of the leader.
            key: in its marker.
            folder: likewise.
            cgroup: holds the process and all that it starts; None: it has none.
            uid: of this instance's processes alone; None: others have it too.

        Raises:
            ProcessLookupError: the process is gone.
        """
        self.pid = pid
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self.cgroup = cgroup
        self._key = key
        self._folder = folder
        self._uid = uid
        self._unreaped = False  # the leader is an own child that has exited; its pid cannot be reused
        self._fd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_exit)

    def terminate(self) -> None:
        """Sends SIGTERM to the whole group."""
        self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._pid_is_valid():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def end(self) -> ExitReason:
        """A process that was watched has exited."""
        return "exit"

    @property
    def end_note(self) -> str:
        """Empty: the kernel tells all."""
        return ""

    @property
    def is_unknown(self) -> bool:
        """Never: the kernel always answers."""
        return False

    @property
    def is_proxied(self) -> bool:
        """Never: it listens itself."""
        return False

    @property
    def counts_oom_kills(self) -> bool:
        """Whether its own group counts them."""
        return self.cgroup is not None

    def oom_message(self, host_memory_mib: int | None) -> str:
        """As its group counts."""
        return oom_message(self.cgroup, host_memory_mib)

    async def kill(self, limit_s: float) -> str:
        """Kills the group until nothing is left or `limit_s` has passed; returns what is left."""
        left = await self.kill_members(limit_s)
        return f"pid {', '.join(map(str, left[:8]))}" if left else ""

    async def forget(self) -> None:
        """Removes its control group."""
        if self.cgroup is not None:
            self.cgroup.remove()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    async def kill_members(self, limit_s: float) -> tuple[int, ...]:
        """Kills the group until nothing is left or `limit_s` has passed; returns the pids that are left."""
        deadline = self._loop.time() + limit_s
        delays = iter(_POLL_S)
        while True:
            self._signal_group(signal.SIGKILL)
            if self.cgroup is not None:
                self.cgroup.kill()
            left = await self._members()
            if left is None:
                left = (self.pid,)
            elif self.exited.is_set() and not left:
                return ()
            else:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if self._loop.time() >= deadline:
                return left or (self.pid,)
            await asyncio.sleep(next(delays, _POLL_S[-1]))

    def close(self) -> None:
        """Ends the watch; reaps the process if it has exited, and does nothing else to it."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if self._unreaped:
                with suppress(ChildProcessError):
                    os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
            os.close(self._fd)
            self._fd = -1

    async def _members(self) -> tuple[int, ...] | None:
        """The pids that are left, None if unknown; read in a thread: a host may have thousands of processes."""
        trusted = self._pid_is_valid()
        try:
            async with asyncio.timeout(_SCAN_LIMIT_S):
                found = await asyncio.to_thread(
                    group_members, self.pid, self._key, self._folder, trust_session=trusted, uid=self._uid
                )
        except OSError as error:  # TimeoutError is one
            log.warning("processes not read", pid=self.pid, error=repr(error))
            return None
        within = () if self.cgroup is None else self.cgroup.members()
        return found + tuple(pid for pid in within if pid not in found and is_alive(pid))

    def _pid_is_valid(self) -> bool:
        return not self.exited.is_set() or self._unreaped

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._fd)
        try:
            status = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            status = None  # adopted: another process's child
        if status is not None:
            self._unreaped = True
            self.exit_code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self.exited.set()
