"""One container of an engine: starts it, watches it, copies its log, signals and kills it.

While Docker is away or restarts, the state of the container is unknown, never an end.
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
from agent.decide.containers import EndEvidence, FirstProcess, exit_code, has_ended, lacks_init
from agent.processes.cgroups import OOM_KILLED
from agent.processes.procfs import read_process, start_ticks
from schemas.wire import ExitReason

_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)
_LOG_END_S: Final = 5.0  # for the last lines, once it has ended
_KILL_POLL_S: Final = 0.5
_KILL_CALL_S: Final = 2.0  # then it is killed by its pid
_LAST_ANSWER_S: Final = 1.0  # for Docker, once it was killed by its pid and is gone
_T = TypeVar("_T")
_MOST_BYTES: Final = 65_536
_REMOVE_RETRY_S: Final = 1.0
_REMOVE_LIMIT_S: Final = 2.0  # of a container that cannot run; if it stays, it is removed later, as a stray
_REPORT_AFTER_S: Final = 3.0
_CONFLICT: Final = 409

log = structlog.get_logger()


class ContainerStart:
    """One attempt to start a container. `config` returns Docker's request, with an init process or without."""

    def __init__(self, engine: DockerEngine, name: str, config: Callable[[bool], dict[str, Any]]) -> None:
        self.done = False
        self._engine = engine
        self._name = name
        self._config = config
        self._create_sent = False  # Docker may have created it
        self._start_sent = False  # from now on it may run

    async def run(self) -> None:
        """Raises DockerRefusalError or DockerAwayError, with nothing left of the container."""
        try:
            for init in (True, False):
                try:
                    await self._create(self._config(init))
                    self._start_sent = True
                    await self._engine.start(self._name)
                except DockerRefusalError as error:
                    if not (init and lacks_init(str(error))):
                        raise
                    await self._remove_for_certain()
                else:
                    self.done = True
                    return
        except (DockerAwayError, DockerRefusalError):  # if Docker is away, the container may run
            await self._remove_for_certain()
            raise

    async def give_up(self, report: Callable[[str], object]) -> None:
        """Returns once nothing of it can run. `run` was cancelled before. `report` gets the reason for a delay.

        Docker continues with requests that it has. A container that is only created never runs; a started container
        may run until Docker reports that it is gone.
        """
        if not self._create_sent:
            return
        if not self._start_sent:
            with contextlib.suppress(TimeoutError, DockerAwayError, DockerRefusalError):
                async with asyncio.timeout(_REMOVE_LIMIT_S):
                    await self._engine.remove(self._name)
            return
        removing = asyncio.create_task(self._remove_for_certain(), name=f"remove {self._name}")
        try:
            done, _ = await asyncio.wait([removing], timeout=_REPORT_AFTER_S)
            if not done:
                report(f"Docker hangs in the start of container {self._name}: it may run until Docker has removed it")
            await removing
        finally:
            removing.cancel()
            await asyncio.gather(removing, return_exceptions=True)

    async def _create(self, config: dict[str, Any]) -> None:
        self._create_sent = True
        try:
            await self._engine.create(self._name, config)
        except DockerRefusalError as error:
            if error.status != _CONFLICT:
                raise
            self._start_sent = True  # left by an agent that was killed
            await self._remove_for_certain()
            await self._engine.create(self._name, config)

    async def _remove_for_certain(self) -> None:
        """Returns once Docker reports that the container is gone: until then it may hold GPUs."""
        while True:
            try:
                await self._engine.remove(self._name)
                if await self._engine.inspect(self._name) is None:
                    self._start_sent = False
                    return
            except (DockerAwayError, DockerRefusalError) as error:
                log.warning("container not removed", container=self._name, error=str(error))
            await asyncio.sleep(_REMOVE_RETRY_S)


class Container:
    """The container of one process, created by this agent or adopted. `open` starts the watch.

    `on_pid` gets the pid and the start of the first process. `bridge`: Docker forwards its port, as far as is known
    before Docker's first answer. `known`: Docker has answered for it. `earlier_boot`: it was started before the host's
    last boot.
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
        self._gone_since_s: float | None = None  # when its first process was gone and Docker had not reported it
        self._end_note = ""
        self._earlier_boot = earlier_boot
        self._answered = False
        self._elsewhere = False  # Docker has no such container, but its first process runs
        self._noted_pid: int | None = None
        self._pid: tuple[int, int | None] | None = None
        self._signalled_by_pid = False
        self._killed = asyncio.Event()  # by its pid, for certain, and Docker does not report it
        self._state: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._log = LogFollow(engine, name, copy)

    def open(self, pid: int | None = None, ticks: int | None = None) -> None:
        """Starts the watch. `pid` and its start are those that an earlier agent knew."""
        self._pid = None if pid is None or self._earlier_boot else (pid, ticks)
        copying = asyncio.create_task(self._log.run(), name=f"log {self._name}")
        self._tasks = [copying, asyncio.create_task(self._watch(copying), name=f"container {self._name}")]

    @property
    def end(self) -> ExitReason:
        """`gone` if it was never started, was removed, or if Docker does not report its end."""
        return "exit" if not self._end_note and self._state.get("Status") in ("exited", "dead") else "gone"

    @property
    def end_note(self) -> str:
        """Why its end is certain where Docker did not report it; empty if Docker did."""
        if self._end_note or self.end == "exit":
            return self._end_note
        return "its container is gone, and Docker does not say how it ended"

    @property
    def is_unknown(self) -> bool:
        return self._away  # its port may be out of reach: Docker forwards connections

    @property
    def is_proxied(self) -> bool:
        return self._bridge  # Docker accepts connections to a published port at once

    @property
    def counts_oom_kills(self) -> bool:
        return False  # Docker reports only kills at the container's own limit

    def oom_message(self, host_memory_mib: int | None) -> str:
        if not self._state.get("OOMKilled") or not host_memory_mib or self.exit_code == 0:
            return ""
        return (
            f"{OOM_KILLED}: the kernel killed it, since it needed more memory than its limit of {host_memory_mib} MiB"
        )

    def terminate(self) -> None:
        self._tasks.append(asyncio.create_task(self._signal(signal.SIGTERM, CALL_LIMIT_S), name=f"stop {self._name}"))

    async def kill(self, limit_s: float) -> str:
        """Kills it through Docker, or by its pid while Docker is away."""
        clock = asyncio.get_running_loop().time
        deadline, gone_s = clock() + limit_s, None
        while not self.exited.is_set():
            if self._signalled_by_pid and self._first_process() == "gone":
                gone_s = clock() if gone_s is None else gone_s
                if clock() - gone_s >= _LAST_ANSWER_S:
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
        """Removes the container. If that fails it is removed later, as a stray."""
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
            except Exception as error:  # noqa: BLE001 - after any error the state is unknown, and the watch continues
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
        """Awaits a call of Docker. Raises DockerAwayError once the container is certainly dead."""
        calling, killed = asyncio.create_task(call), asyncio.create_task(self._killed.wait())
        try:
            await asyncio.wait({calling, killed}, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return await calling
            self._answered = False
            raise DockerAwayError("it hangs")
        finally:
            calling.cancel()
            killed.cancel()
            await asyncio.gather(calling, killed, return_exceptions=True)

    async def _has_ended(self) -> bool:
        """Raises DockerAwayError, DockerRefusalError, ValueError or TypeError if that is unknown."""
        self._answered = False
        container = await self._engine.inspect(self._name)
        self._answered = True
        self._elsewhere = container is None and self._first_process_runs()
        if self._elsewhere:
            raise DockerAwayError("this Docker knows no such container, and yet its first process runs")
        if container is None:
            self._state = {}
            return True
        state = dict(container.get("State") or {})
        if state.get("Running"):
            self._state = state
            # Without bridges it uses the host's network even if its order does not require that.
            network = dict(container.get("HostConfig") or {}).get("NetworkMode")
            self._bridge = network != "host" if network else self._bridge
            self._note_pid(int(state.get("Pid") or 0), str(container.get("Id") or ""))
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
        except Exception as error:  # noqa: BLE001 - such as a full disk; it is noted again after the next answer
            log.warning("pid not noted", container=self._name, error=str(error))
        else:
            self._noted_pid = pid

    def _first_process_runs(self) -> bool:
        if self._pid is None or self._pid[1] is None:
            return False
        process = read_process(self._pid[0])
        return process is not None and not process.zombie and process.start_ticks == self._pid[1]

    def _is_dead(self, error: Exception) -> bool:
        """Whether it has certainly ended although Docker does not report its state."""
        process, now_s = self._first_process(), boot_clock()
        earlier_boot = self._earlier_boot and self._pid is None  # else it was started by hand since
        if process != "gone" and not earlier_boot:
            self._gone_since_s = None
            return False
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        evidence = EndEvidence(
            answers=self._answered or not isinstance(error, DockerAwayError),
            process=process,
            signalled_by_pid=self._signalled_by_pid,
            earlier_boot=earlier_boot,
            for_s=now_s - self._gone_since_s,
        )
        if not has_ended(evidence):
            return False
        pid = self._pid[0] if self._pid else ""
        why = "the host was started again" if earlier_boot else f"its first process {pid} is gone"
        docker = f"answers: {error}" if evidence.answers else "does not answer"
        self._end_note = f"{why}, and Docker {docker}; how it ended is unknown"
        return True

    def _first_process(self) -> FirstProcess:
        if self._pid is None or self._pid[1] is None:
            return "unknown"
        try:
            if self._first_process_runs():
                return "runs"
            # Pids may be hidden: then even pid 1 is.
            shows_pids = self._engine.address.startswith("unix:") and read_process(1) is not None
        except OSError:  # such as too many open files
            return "unknown"
        return "gone" if shows_pids or self._signalled_by_pid else "unknown"

    async def _signal(self, number: signal.Signals, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._engine.signal(self._name, number.name)
            if self._elsewhere:
                self._signal_pid(number)
        except (DockerAwayError, DockerRefusalError, TimeoutError):
            self._signal_pid(number)

    def _signal_pid(self, number: signal.Signals) -> None:
        """Signals the first process; the kernel ends the rest of a container with it."""
        if self._pid is None or self._pid[1] is None:
            return
        with contextlib.suppress(OSError):  # gone, another account's, or not to be read
            if start_ticks(self._pid[0]) != self._pid[1]:
                return
            os.kill(self._pid[0], number)
            self._signalled_by_pid = True


def ticks_of_container(pid: int, container_id: str) -> int | None:
    """Start of the process in the kernel's ticks since boot; None unless it is known to be the container's."""
    # Docker may count pids in another namespace or on another machine, as Docker Desktop does, and a pid may be reused.
    # The kernel shows the container of a process: its cgroup's name has the container's id.
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
