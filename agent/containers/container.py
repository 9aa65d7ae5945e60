"""One container of an engine: watches it, copies its log, signals it, and kills it until it is gone.

Docker may be away or start again while the container runs on: that is unknown, never an end.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from agent.clock import boot_clock
from agent.containers.docker_engine import CALL_LIMIT_S, DockerAwayError, DockerEngine, DockerRefusalError
from agent.containers.log_copy import LogCopy, LogFollow
from agent.decide.containers import FirstProcess, NoWord, exit_code, has_ended
from agent.processes.cgroups import OOM_KILLED
from agent.processes.procfs import read_process, start_ticks
from schemas.wire import ExitReason

_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)
_LOG_END_S: Final = 5.0  # for the last lines, once it has ended
_KILL_POLL_S: Final = 0.5
_KILL_CALL_S: Final = 2.0  # then it is killed by its pid
_LAST_WORD_S: Final = 1.0  # for Docker, once it was killed by its pid and is gone
_T = TypeVar("_T")

log = structlog.get_logger()
_MOST_BYTES: Final = 65_536


class Container:
    """The container of one process, of this agent's making or adopted. `open` starts the watch.

    Args:
        engine: the Docker engine.
        name: of the container.
        copy: where its log goes.
        on_pid: gets the pid of its first process, and when that started.
        bridge: whether its port is passed on by Docker, as far as is known before Docker has told.
        known: whether Docker has answered for it yet.
        earlier_boot: whether it was started before the host's last start.
    """

    def __init__(
        self,
        engine: DockerEngine,
        name: str,
        copy: LogCopy,
        on_pid: Callable[[int, int | None], None],
        *,
        bridge: bool,
        known: bool,
        earlier_boot: bool = False,
    ) -> None:
        self.exited = asyncio.Event()
        self.exit_code: int | None = None
        self._engine = engine
        self._name = name
        self._copy = copy
        self._on_pid = on_pid
        self._bridge = bridge
        self._away = not known
        self._gone_since_s: float | None = None  # when its first process was found gone, without a word of Docker's
        self._end_note = ""
        self._earlier_boot = earlier_boot
        self._answered = False
        self._elsewhere = False  # Docker knows no such container, and yet its first process runs
        self._noted_pid: int | None = None
        self._pid: tuple[int, int | None] | None = None
        self._signalled_by_pid = False
        self._killed = asyncio.Event()  # by its pid, for certain, and Docker says nothing of it
        self._state: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._log = LogFollow(engine, name, copy)

    def open(self, pid: int | None = None, ticks: int | None = None) -> None:
        """Starts to watch. `pid` and its start: as an earlier agent knew them."""
        self._pid = None if pid is None or self._earlier_boot else (pid, ticks)
        copying = asyncio.create_task(self._log.run(), name=f"log {self._name}")
        self._tasks = [copying, asyncio.create_task(self._watch(copying), name=f"container {self._name}")]

    @property
    def end(self) -> ExitReason:
        """`gone` if it was never started, was removed, or if Docker does not say."""
        return "exit" if not self._end_note and self._state.get("Status") in ("exited", "dead") else "gone"

    @property
    def end_note(self) -> str:
        """That Docker did not say how it ended, and by what its end is certain; empty: Docker said it."""
        if self._end_note or self.end == "exit":
            return self._end_note
        return "its container is gone, and Docker does not say how it ended"

    @property
    def is_unknown(self) -> bool:
        """While Docker is away, its port may be out of reach: Docker passes connections on."""
        return self._away

    @property
    def is_proxied(self) -> bool:
        """Docker accepts connections to a published port at once."""
        return self._bridge

    @property
    def counts_oom_kills(self) -> bool:
        """Docker tells of kills at the container's own limit alone."""
        return False

    def oom_message(self, host_memory_mib: int | None) -> str:
        if not self._state.get("OOMKilled") or not host_memory_mib or self.exit_code == 0:
            return ""
        return (
            f"{OOM_KILLED}: the kernel killed it, since it needed more memory than its limit of {host_memory_mib} MiB"
        )

    def terminate(self) -> None:
        self._tasks.append(asyncio.create_task(self._signal(signal.SIGTERM, CALL_LIMIT_S), name=f"stop {self._name}"))

    async def kill(self, limit_s: float) -> str:
        """Kills it by Docker, and where that is away by its pid."""
        clock = asyncio.get_running_loop().time
        deadline, gone_s = clock() + limit_s, None
        while not self.exited.is_set():
            if self._signalled_by_pid and self._first_process() == "gone":
                gone_s = clock() if gone_s is None else gone_s
                if clock() - gone_s >= _LAST_WORD_S:
                    self._killed.set()
            else:
                await self._signal(signal.SIGKILL, _KILL_CALL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_POLL_S):
                    await self.exited.wait()
            if clock() >= deadline and not self.exited.is_set():
                pid = self._pid[0] if self._pid else "unknown"
                away = "; Docker does not answer" if self._away else ""
                return f"container {self._name}, pid {pid}{away}"
        return ""

    async def forget(self) -> None:
        """Removes the container; one that stays is removed later, as a stray."""
        with contextlib.suppress(OSError):
            self._copy.forget()
        with contextlib.suppress(DockerAwayError, DockerRefusalError):
            await self._engine.remove(self._name)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, copying: asyncio.Task[None]) -> None:
        """Returns once it has ended for certain and its log is copied."""
        delays = iter(_RETRY_S)
        while True:
            try:
                if await self._unless_killed(self._has_ended()):
                    break
                self._away, self._gone_since_s, delays = False, None, iter(_RETRY_S)
                await self._unless_killed(self._engine.wait(self._name))
            except Exception as error:  # noqa: BLE001 - whatever it is, the state is unknown, and the watch continues
                self._away = True
                log.warning("container state unknown", container=self._name, error=str(error))
                if self._is_dead(error):
                    break
                await asyncio.sleep(next(delays, _RETRY_S[-1]))
        self._log.end()
        await asyncio.wait([copying], timeout=0.0 if self._killed.is_set() else _LOG_END_S)
        copying.cancel()
        self.exited.set()

    async def _unless_killed(self, call: Coroutine[Any, Any, _T]) -> _T:
        """What a call of Docker returns, which is not waited for once the container is certainly dead.

        Raises:
            DockerAwayError: it was not waited for, besides what the call raises.
        """
        asking, killed = asyncio.create_task(call), asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait({asking, killed}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return await asking
            self._answered = False
            raise DockerAwayError("it hangs")
        finally:
            asking.cancel()
            killed.cancel()
            await asyncio.gather(asking, killed, return_exceptions=True)

    async def _has_ended(self) -> bool:
        """Reads its state from Docker.

        Raises:
            DockerAwayError, DockerRefusalError, ValueError, TypeError: that is unknown.
        """
        self._answered = False
        found = await self._engine.inspect(self._name)
        self._answered = True
        self._elsewhere = found is None and self._first_process_runs()
        if self._elsewhere:
            raise DockerAwayError("this Docker knows no such container, and yet its first process runs")
        if found is None:
            self._state = {}
            return True
        state = dict(found.get("State") or {})
        if state.get("Running"):
            self._state = state
            # It may use the host's network although its order did not ask for that: no bridge was there.
            network = dict(found.get("HostConfig") or {}).get("NetworkMode")
            self._bridge = network != "host" if network else self._bridge
            self._note_pid(int(state.get("Pid") or 0), str(found.get("Id") or ""))
            self._log.begin()
            return False
        status = state.get("Status")
        if status in ("exited", "dead"):
            self.exit_code = exit_code(int(state.get("ExitCode") or 0))
            self._state = state
            return True
        if status == "created":  # an agent ended while it was started, and Docker may continue
            await self._engine.remove(self._name)
        raise DockerAwayError(f"its state is {status!r}")

    def _note_pid(self, pid: int, container_id: str) -> None:
        if not pid or self._noted_pid == pid:
            return
        self._pid = (pid, ticks_of_container(pid, container_id))
        try:
            self._on_pid(*self._pid)
        except Exception as error:  # noqa: BLE001 - such as a full disk; it is told again after the next answer
            log.warning("pid not noted", container=self._name, error=str(error))
        else:
            self._noted_pid = pid

    def _first_process_runs(self) -> bool:
        if self._pid is None or self._pid[1] is None:
            return False
        process = read_process(self._pid[0])
        return process is not None and not process.zombie and process.start_ticks == self._pid[1]

    def _is_dead(self, error: Exception) -> bool:
        """Whether it has certainly ended, while Docker does not say how it is."""
        process, now_s = self._first_process(), boot_clock()
        earlier_boot = self._earlier_boot and self._pid is None  # else it was started by hand since
        if process != "gone" and not earlier_boot:
            self._gone_since_s = None
            return False
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        known = NoWord(
            answers=self._answered or not isinstance(error, DockerAwayError),
            process=process,
            signalled_by_pid=self._signalled_by_pid,
            earlier_boot=earlier_boot,
            for_s=now_s - self._gone_since_s,
        )
        if not has_ended(known):
            return False
        pid = self._pid[0] if self._pid else ""
        which = "the host was started again" if earlier_boot else f"its first process {pid} is gone"
        says = f"answers: {error}" if known.answers else "does not answer"
        self._end_note = f"{which}, and Docker {says}; how it ended is unknown"
        return True

    def _first_process(self) -> FirstProcess:
        if self._pid is None or self._pid[1] is None:
            return "unknown"
        try:
            if self._first_process_runs():
                return "runs"
            # Pids may be hidden: then even the first one is not seen.
            seen = self._engine.address.startswith("unix:") and read_process(1) is not None
        except OSError:  # such as no file left to read it by
            return "unknown"
        return "gone" if seen or self._signalled_by_pid else "unknown"

    async def _signal(self, number: signal.Signals, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._engine.signal(self._name, number.name)
            if self._elsewhere:
                self._signal_pid(number)
        except (DockerAwayError, DockerRefusalError, TimeoutError):
            self._signal_pid(number)

    def _signal_pid(self, number: signal.Signals) -> None:
        """Signals the first process; the kernel ends all others of a container with it."""
        if self._pid is None or self._pid[1] is None:
            return
        with contextlib.suppress(OSError):  # gone, another account's, or not to be read
            if start_ticks(self._pid[0]) != self._pid[1]:
                return
            os.kill(self._pid[0], number)
            self._signalled_by_pid = True


def ticks_of_container(pid: int, container_id: str) -> int | None:
    """When the process started, in the kernel's ticks since boot; None where it is not known to be the container's.

    Docker may count in another namespace or on another machine, as Docker Desktop does, and a pid may be another
    process's by now. The kernel says which container a process is in: its cgroup bears the container's id.

    Args:
        pid: of the container's first process, by Docker.
        container_id: 64 hexadecimal digits, by Docker.
    """
    ticks = start_ticks(pid)
    if ticks is None or not container_id or container_id not in _cgroups(pid):
        return None
    return ticks if start_ticks(pid) == ticks else None


def _cgroups(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cgroup").open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
