"""The process group of one engine: watches the leader, signals the group, and kills it completely."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final

import structlog

from agent.processes.cgroups import Cgroup, oom_message
from agent.processes.engine_parent import EndRecord, EngineEnd, EngineParent
from agent.processes.procfs import group_members, is_alive
from agent.state.process_records import ProcessKey
from schemas.exit_causes import KILLED_FOR_MEMORY
from schemas.wire import ExitReason

_POLL_S: Final = (0.01, 0.02, 0.05, 0.1, 0.25)
_SCAN_LIMIT_S: Final = 30.0

log = structlog.get_logger()


class ProcessGroup:
    """A leader with its own session and process group, watched through a pidfd.

    Its parent reaps it last: while it is a zombie, its pid, and thus the group's number, cannot be reused. The exit
    code is known once the group is empty, or stays unknown if the parent has died or never existed.
    """

    def __init__(
        self,
        pid: int,
        key: ProcessKey,
        folder: str,
        cgroup: Cgroup | None = None,
        *,
        uid: int | None = None,
        parent: EngineParent | None = None,
        record: EndRecord | None = None,
        is_gone: bool = False,
        unwatched: bool = False,
        serves: bool = False,
    ) -> None:
        """Starts the watch. Raises ProcessLookupError if the process is gone.

        Args:
            pid: of the leader.
            key: in its marker, as is `folder`.
            folder: see above.
            cgroup: of the process and its children.
            uid: if only this instance's processes have it, else None.
            parent: of the leader; closed by this object. None: it has died, or never existed.
            record: of the end, by the parent.
            is_gone: the leader has ended and was reaped; its group may live.
            unwatched: the leader has ended while no agent ran.
            serves: it serves until it is stopped, so its code 0 is not a result.
        """
        self.pid = pid
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self.cgroup = cgroup
        self._key = key
        self._folder = folder
        self._uid = uid
        self._parent = parent
        self._record = record
        self._unwatched = unwatched
        self._serves = serves
        self._end: EngineEnd | None = None
        self._unreaped = False  # the leader is an own, exited child; its pid cannot be reused
        self._loop = asyncio.get_running_loop()
        self._fd = -1 if is_gone else os.pidfd_open(pid)
        if is_gone:
            self.exited.set()
        else:
            self._loop.add_reader(self._fd, self._on_exit)

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._pid_is_valid():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def end(self) -> ExitReason:
        # A host's shutdown stops a running agent too, which then has a plan.
        stopped = self._unwatched and self._end is not None and self._end.asked
        return "agent_stopped" if stopped and (self._serves or self.exit_code != 0) else "exit"

    @property
    def end_note(self) -> str:
        return "its host stopped it while no agent ran" if self.end == "agent_stopped" else ""

    @property
    def is_unknown(self) -> bool:
        return False

    @property
    def is_proxied(self) -> bool:
        return False

    @property
    def counts_oom_kills(self) -> bool:
        return self.cgroup is not None

    def oom_message(self, host_memory_mib: int | None) -> str:
        """By its cgroup's count, else by the host's count as recorded by its parent."""
        if self.cgroup is None and self._end is not None and self._end.oom_kills and self._end.code == -signal.SIGKILL:
            return KILLED_FOR_MEMORY
        return oom_message(self.cgroup, host_memory_mib)

    async def kill(self, limit_s: float) -> str:
        """Kills the group for at most `limit_s`; returns the survivors, as text."""
        left = await self.kill_members(limit_s)
        if left:
            return f"pid {', '.join(map(str, left[:8]))}"
        await self._take_end()
        return ""

    async def forget(self) -> None:
        if self.cgroup is not None:
            self.cgroup.remove()
        if self._record is not None:
            self._record.remove()

    async def _take_end(self) -> None:
        """Releases the parent, since the group's number is no longer needed, and reads its record."""
        if self._parent is not None:
            await self._parent.release()
        self._end = None if self._record is None else await asyncio.to_thread(self._record.read)
        if self._end is not None:
            self.exit_code = self._end.code
            log.info("engine ended", instance=self._key.instance, epoch=self._key.epoch, **self._end.model_dump())

    async def aclose(self) -> None:
        self.close()

    async def kill_members(self, limit_s: float) -> tuple[int, ...]:
        """Kills the group for at most `limit_s`; returns surviving pids."""
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
        """Ends the watch, and reaps an exited process."""
        if self._parent is not None:
            self._parent.close()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if self._unreaped:
                with suppress(ChildProcessError):
                    os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
            os.close(self._fd)
            self._fd = -1

    async def _members(self) -> tuple[int, ...] | None:
        """Live pids; None if unknown. In a thread, since a host may have thousands of processes."""
        trusted = self._pid_is_valid()
        try:
            async with asyncio.timeout(_SCAN_LIMIT_S):
                members = await asyncio.to_thread(
                    group_members, self.pid, self._key, self._folder, trust_session=trusted, uid=self._uid
                )
        except OSError as error:  # TimeoutError is one
            log.warning("processes not read", pid=self.pid, error=repr(error))
            return None
        within = () if self.cgroup is None else self.cgroup.members()
        return members + tuple(pid for pid in within if pid not in members and is_alive(pid))

    def _pid_is_valid(self) -> bool:
        kept = self._unreaped or (self._parent is not None and self._parent.is_alive)
        return not self.exited.is_set() or kept

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._fd)
        try:
            status = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            status = None  # its parent's child
        if status is not None:
            self._unreaped = True
            self.exit_code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        self.exited.set()
