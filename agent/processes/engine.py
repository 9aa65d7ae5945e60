"""The life of one process on this host: spawn (or take over), watch, stop, report. One task per process."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from agent.clock import Clock
from agent.errors import SpawnError
from agent.journal import Journal
from agent.processes import health
from agent.processes.child import Child, start_ticks
from agent.processes.folders import Folders
from agent.processes.ports import PortBook
from agent.processes.probe import Prober
from agent.processes.spawn import engine_argv, engine_env, spawn
from agent.processes.waiting import first_of
from agent.records import Key, ProcessRecord, StopPlan
from agent.traffic import Traffic
from schemas.wire import ProbeOrder, StartOrder

_ALIVE_AFTER_S: Final = 0.2  # without port and probe: it runs once it has lived so long
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # quick, so that a start is noticed fast
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing where no probe is ordered
_LOG_CHECK_S: Final = 1.0
_REQUESTS_SHARE: Final = 0.8  # of the drain time goes to requests in flight, the rest to SIGTERM
_KILL_PATIENCE_S: Final = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tools:
    """What every engine of one agent works with."""

    journal: Journal
    folders: Folders
    ports: PortBook
    prober: Prober
    traffic: Traffic
    clock: Clock
    boot_id: str
    emit: Callable[[ProcessRecord], None]
    gpu_index: Callable[[str], int | None]  # the number that a GPU has on this host now


class Engine:
    """Owns one process from spawn to the end of its group. All of its states go through the journal."""

    def __init__(self, record: ProcessRecord, order: StartOrder, tools: Tools, child: Child | None = None) -> None:
        """`child` is the adopted process; None: it is still to be spawned."""
        self._record = record
        self._order = order
        self._tools = tools
        self._child = child
        self._deadline_s = float("inf")
        self._stop_changed = asyncio.Event()
        if record.stop is not None:
            self._deadline_s = tools.clock() + record.stop.drain_time_s
            self._stop_changed.set()

    @property
    def key(self) -> Key:
        """The process's name."""
        return self._record.key

    @property
    def order(self) -> StartOrder:
        """What it was started with."""
        return self._order

    def ask_stop(self, plan: StopPlan, message: str = "") -> None:
        """Journals and starts the stop. Asked again, the earlier end counts and the first reason stays."""
        self._deadline_s = min(self._deadline_s, self._tools.clock() + plan.drain_time_s)
        if self._record.stop is None and self._record.alive:
            self._write(state="stopping", stop=plan, message=message)
        self._stop_changed.set()

    async def run(self) -> None:
        """Lives the life; returns when the end is journalled. Cancelled, it leaves the process running."""
        try:
            child = self._child or self._spawn()
        except SpawnError as error:
            self._finish("spawn_failed", None, str(error))
            return
        try:
            await first_of(self._watch(), self._bound_log(), self._stop_changed.wait(), child.exited.wait())
            if self._record.stop is not None:
                await self._drain(child)
            await self._clear(child)
            plan = self._record.stop
            self._finish(plan.reason if plan else "exit", child.exit_code, self._record.message)
        finally:
            child.close()

    def _spawn(self) -> Child:
        tools, key, order = self._tools, self._record.key, self._order
        port = tools.ports.take() if order.needs_port else None
        self._amend(port=port)  # before the start: should the agent die in between, its successor knows the port
        argv = engine_argv(order, port)
        env = engine_env(os.environ, order, key, port=port, data_dir=tools.folders.data_dir, gpu_index=tools.gpu_index)
        try:
            work, output = tools.folders.work(key.instance), tools.folders.log(key)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        pid = spawn(argv, env, work=work, log=output)
        self._amend(pid=pid, pid_start_ticks=start_ticks(pid))
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=pid, port=port)
        return Child(pid, key, str(tools.folders.data_dir))

    async def _watch(self) -> None:
        """Probes until the process has to be killed for what it does not answer."""
        order, port, clock = self._order, self._record.port, self._tools.clock
        probe = order.probe or _PORT_PROBE
        limits = health.Limits(probe.failures, order.start_timeout_s, order.liveness_timeout_s)
        vital = self._first_vital()
        began_s, logged, quick = clock(), self._tools.folders.progress(self.key), iter(_FIRST_PROBES_S)
        while True:
            if port is None:
                answered = vital.ready or clock() - began_s >= _ALIVE_AFTER_S
            else:
                answered = await self._tools.prober.ask(order.probe, port)
            vital = health.observed(vital, limits, answered=answered, now_s=clock())
            if not vital.ready and logged != (logged := self._tools.folders.progress(self.key)):
                vital = health.progressed(vital, clock())
            reason = health.sentence(vital, limits, clock())
            if reason is not None:
                self.ask_stop(StopPlan(reason=reason, drain_time_s=0.0), self._accusation(reason))
                return
            self._publish(vital)
            await asyncio.sleep(probe.period_s if vital.ready else next(quick, _FIRST_PROBES_S[-1]))

    def _accusation(self, reason: str) -> str:
        if reason == "start_timeout":
            return f"no answer to its probe, and nothing logged for {self._order.start_timeout_s:g} s"
        return f"unhealthy for {self._order.liveness_timeout_s:g} s"

    def _first_vital(self) -> health.Vital:
        record, now_s = self._record, self._tools.clock()
        state = record.state if record.state in ("running", "unhealthy") else "starting"
        since = now_s if state == "unhealthy" else None
        return health.Vital(state=state, progress_s=now_s, ready=record.ready, unhealthy_s=since)

    def _publish(self, vital: health.Vital) -> None:
        if (vital.state, vital.ready) == (self._record.state, self._record.ready):
            return
        first = vital.ready and not self._record.ready
        self._write(
            state=vital.state, ready=vital.ready, ready_s=self._tools.clock() if first else self._record.ready_s
        )

    async def _bound_log(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            try:
                await asyncio.to_thread(self._tools.folders.bound, self.key)
            except OSError as error:  # a full disk is no reason to lose the engine
                log.warning("log cannot be cut", instance=self.key.instance, error=str(error))

    async def _drain(self, child: Child) -> None:
        """Lets requests in flight end, then asks the group to; returns when it has, or time is up."""
        if self._record.state != "stopping":
            self._write(state="stopping")
        began_s = self._tools.clock()
        while not child.exited.is_set() and self._tools.traffic.count(self.key.instance):
            left_s = (self._deadline_s - began_s) * _REQUESTS_SHARE - (self._tools.clock() - began_s)
            if left_s <= 0:
                break
            await self._stop_news(left_s, child, self._tools.traffic.idle(self.key.instance))
        if self._deadline_s > self._tools.clock():
            child.terminate()
        while not child.exited.is_set() and (left_s := self._deadline_s - self._tools.clock()) > 0:
            await self._stop_news(left_s, child)

    async def _stop_news(self, limit_s: float, child: Child, *others: Coroutine[Any, Any, None]) -> None:
        """Waits for the exit, for a stop with an earlier end, or for one of the others."""
        self._stop_changed.clear()
        await first_of(child.exited.wait(), self._stop_changed.wait(), *others, limit_s=limit_s)

    async def _clear(self, child: Child) -> None:
        """Kills what is left. A group that will not die holds its GPUs, so it is not reported as exited."""
        while left := await child.clear_group(_KILL_PATIENCE_S):
            pids = ", ".join(map(str, left[:8]))
            message = f"not dead {_KILL_PATIENCE_S:g} s after SIGKILL: pid {pids}"
            if self._record.message != message:
                log.error("process group will not die", instance=self.key.instance, epoch=self.key.epoch, pids=pids)
                self._write(message=message)

    def _finish(self, reason: str, exit_code: int | None, message: str) -> None:
        if self._record.port is not None:
            self._tools.ports.release(self._record.port)
        self._write(state="exited", reason=reason, exit_code=exit_code, message=message, order=None, stop=None)

    def _amend(self, **changes: object) -> None:
        self._record = self._record.model_copy(update=changes)
        self._tools.journal.amend(self._record)

    def _write(self, **changes: object) -> None:
        before = self._record.state
        self._record = self._tools.journal.record(self._record.model_copy(update=changes))
        record = self._record
        if record.state != before:
            log.info(
                "process changed",
                instance=record.instance,
                epoch=record.epoch,
                rank=record.rank,
                state=record.state,
                reason=record.reason,
                exit_code=record.exit_code,
            )
        self._tools.emit(record)
