"""The lifecycle of one process on this host: start or adopt, watch, graceful stop, report. One task per process."""

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import structlog

from agent.clock import Clock
from agent.errors import SpawnError
from agent.model_cache.fetch_errors import FetchError
from agent.processes.engine_start import EngineStart
from agent.processes.folders import InstanceFolders
from agent.processes.health_watch import rotate_log, watch_health
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.procfs import oom_kills
from agent.processes.running import Running
from agent.state.process_records import ProcessKey, ProcessRecord, StopPlan, name_of
from agent.tasks import wait_first
from schemas.exit_causes import KILLED_FOR_MEMORY, cause_line
from schemas.wire import GPU_MEMORY_HELD, StartOrder

_REQUESTS_SHARE: Final = 0.8  # share of the drain time for requests in flight; the rest follows SIGTERM
_UNREADY_DRAIN_S: Final = 30.0  # a server that has never answered has no request to finish
_KILL_LIMIT_S: Final = 5.0
_TAIL_LIMIT_S: Final = 5.0

BACK_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.2

log = structlog.get_logger()


class EndCause(NamedTuple):
    """Why a process has ended, as far as known."""

    message: str
    log_line: str = ""  # the part of the message that is a line of the log


async def end_cause(
    kept: KeptRecord, order: StartOrder, folders: InstanceFolders, group: Running, kills: deque[int]
) -> EndCause:
    """The cause of an end without a stop: the kernel's kill, or the most informative line of the log."""
    if killed := group.oom_message(order.host_memory_mib):
        return EndCause(killed)
    if group.end != "exit":
        return EndCause("")
    if not group.counts_oom_kills and group.exit_code == -signal.SIGKILL and oom_kills() > kills[0]:
        return EndCause(KILLED_FOR_MEMORY)
    if group.exit_code == 0 and not order.needs_port:
        return EndCause(kept.lasting_message)  # a completed task
    try:
        async with asyncio.timeout(_TAIL_LIMIT_S):
            tail = await asyncio.to_thread(folders.log_tail, kept.key, kept.redactor)
    except OSError as error:  # TimeoutError is one
        log.warning("log not read", instance=kept.key.instance, error=str(error))
        return EndCause(kept.lasting_message)
    line = cause_line(tail, group.exit_code)
    return EndCause(line or kept.lasting_message, line)


async def memory_back(key: ProcessKey, listing: Callable[[ProcessKey], tuple[str, ...]], clock: Clock) -> str:
    """Waits until the driver lists an ended process on no GPU: only then its memory is free.

    Returns a code and a text after the limit, else an empty text.
    """
    deadline_s = clock() + BACK_LIMIT_S
    while gpus := listing(key):
        if clock() >= deadline_s:
            log.warning("GPU memory of an ended engine not back", instance=key.instance, gpus=gpus)
            return f"{GPU_MEMORY_HELD}: {BACK_LIMIT_S:g} s after its end the driver still lists it on {gpus[0]}"
        await asyncio.sleep(_POLL_S)
    return ""


class EngineProcess:
    """Owns one process from its spawn to the end of its group. Each state is journalled before it is reported."""

    def __init__(
        self, record: ProcessRecord, order: StartOrder, context: ProcessContext, group: Running | None = None
    ) -> None:
        """`group` None: the process is yet to be spawned, or its container to be adopted."""
        self._kept = KeptRecord(record, context.journal, context.report)
        self._order = order
        self._context = context
        self._group = group
        self._deadline_s = float("inf")
        self._stop_changed = asyncio.Event()
        self._start = EngineStart(self._kept, order, context, self._stop_changed)
        self._oom_kills = deque([oom_kills()], maxlen=2)  # at least the second last reading
        if record.stop is not None:
            self._deadline_s = context.clock() + record.stop.drain_time_s
            self._stop_changed.set()

    @property
    def key(self) -> ProcessKey:
        return self._kept.key

    @property
    def order(self) -> StartOrder:
        return self._order

    def stop(self, plan: StopPlan, message: str = "") -> None:
        """Journals and starts the stop. A repeated call can only shorten the drain; the first reason stays."""
        self._deadline_s = min(self._deadline_s, self._context.clock() + plan.drain_time_s)
        if self._kept.now.stop is None and self._kept.now.alive:
            self._kept.write(state="stopping", stop=plan, message=message)
        self._stop_changed.set()

    async def run(self) -> None:
        """Returns when the exit is journalled. A cancelled lifecycle leaves the process running."""
        group = self._group
        if group is None:
            try:
                group = await self._start.run()
            except (FetchError, SpawnError) as error:
                self._finish("spawn_failed", None, str(error))
                return
        if group is None:
            plan = self._kept.now.stop
            self._finish(plan.reason if plan else "stopped", None, self._kept.lasting_message)
            return
        try:
            await wait_first(
                self._watch_health(group),
                rotate_log(self._kept, self._context, self._oom_kills),
                self._stop_changed.wait(),
                group.exited.wait(),
            )
            if self._kept.now.stop is not None:
                await self._stop_gracefully(group)
            await self._kill(group)
            await self._index_last_output()
            await self._report_end(group)
            await group.forget()
        finally:
            self._context.activity.forget(self.key.instance)  # else waits of a deleted instance would stay
            await group.aclose()

    def adopt_container(self) -> None:
        self._group = self._start.adopt_container()

    async def _watch_health(self, group: Running) -> None:
        plan, message = await watch_health(self._kept, self._order, self._context, group)
        self.stop(plan, message)

    async def _stop_gracefully(self, group: Running) -> None:
        """Waits for requests in flight, then sends SIGTERM; returns at the exit or when the drain time is over."""
        if self._kept.now.state != "stopping":
            self._kept.write(state="stopping")
        instance, clock = self.key.instance, self._context.clock
        started_s = clock()
        if not self._kept.now.ready and self._kept.now.port is not None:
            self._deadline_s = min(self._deadline_s, started_s + _UNREADY_DRAIN_S)
        while not group.exited.is_set() and self._context.in_flight.count(instance):
            left_s = (self._deadline_s - started_s) * _REQUESTS_SHARE - (clock() - started_s)
            if left_s <= 0:
                break
            await self._wait_exit(left_s, group, self._context.in_flight.until_idle(instance))
        if self._deadline_s > clock():
            group.terminate()
        while not group.exited.is_set() and (left_s := self._deadline_s - clock()) > 0:
            await self._wait_exit(left_s, group)

    async def _wait_exit(self, limit_s: float, group: Running, *others: Coroutine[Any, Any, None]) -> None:
        """Waits for the exit, an earlier deadline, or another coroutine."""
        self._stop_changed.clear()
        await wait_first(group.exited.wait(), self._stop_changed.wait(), *others, limit_s=limit_s)

    async def _kill(self, group: Running) -> None:
        """Kills the group. A surviving process may hold its GPUs, so no exit is reported before its end."""
        while left := await group.kill(_KILL_LIMIT_S):
            if self._kept.report_for_now(f"still alive {_KILL_LIMIT_S:g} s after SIGKILL: {left}"):
                log.error("process group survives SIGKILL", instance=self.key.instance, epoch=self.key.epoch, left=left)

    async def _index_last_output(self) -> None:
        with contextlib.suppress(OSError):
            index = await asyncio.to_thread(self._context.folders.index, self.key)
            await asyncio.to_thread(index.poll)

    async def _report_end(self, group: Running) -> None:
        kept, context, plan = self._kept, self._context, self._kept.now.stop
        if plan is None:
            cause = await end_cause(kept, self._order, context.folders, group, self._oom_kills)
        else:
            cause = EndCause(kept.lasting_message)
        held = await memory_back(self.key, context.gpus_listing, context.clock)
        message = "; ".join(filter(None, (cause.message, group.end_note, held)))
        self._finish(plan.reason if plan else group.end, group.exit_code, message, cause.log_line)

    def _finish(self, reason: str, exit_code: int | None, message: str, log_line: str = "") -> None:
        self._context.fetches.uses.note_end(name_of(self.key), {fetch.repo for fetch in self._order.fetches})
        if self._kept.now.port is not None:
            self._context.ports.release(self._kept.now.port)
        self._kept.write(
            state="exited",
            reason=reason,
            exit_code=exit_code,
            message=message,
            log_line=log_line,
            order=None,
            stop=None,
        )
