"""The lifecycle of one process on this host: spawn or adopt, probe, stop, report. One task per process."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from agent.clock import Clock
from agent.decide.health import HealthLimits, ProcessHealth, after_probe, kill_reason
from agent.errors import SpawnError
from agent.in_flight import InFlightRequests
from agent.journal import Journal
from agent.process_records import ProcessKey, ProcessRecord, StopPlan
from agent.processes.folders import InstanceFolders
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import start_ticks
from agent.processes.spawn import engine_argv, engine_env, spawn
from agent.wait_first import wait_first
from schemas.wire import ProbeOrder, StartOrder

_ALIVE_AFTER_S: Final = 0.2  # without a port, a process is running after this time
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # short at first, so that a fast start is noticed at once
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing without an ordered probe
_LOG_CHECK_S: Final = 1.0
_REQUESTS_SHARE: Final = 0.8  # share of the drain time for requests in flight; the rest follows SIGTERM
_KILL_LIMIT_S: Final = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What all processes of one agent share. `report` queues a report; `gpu_index` returns a GPU's present index."""

    journal: Journal
    folders: InstanceFolders
    ports: PortAllocator
    prober: Prober
    in_flight: InFlightRequests
    clock: Clock
    boot_id: str
    report: Callable[[ProcessRecord], None]
    gpu_index: Callable[[str], int | None]


class EngineProcess:
    """Owns one process from its spawn to the end of its group. Every state is journalled before it is reported."""

    def __init__(
        self, record: ProcessRecord, order: StartOrder, context: ProcessContext, group: ProcessGroup | None = None
    ) -> None:
        """`group` is the adopted process's; None: the process is yet to be spawned."""
        self._record = record
        self._order = order
        self._context = context
        self._group = group
        self._deadline_s = float("inf")
        self._stop_changed = asyncio.Event()
        if record.stop is not None:
            self._deadline_s = context.clock() + record.stop.drain_time_s
            self._stop_changed.set()

    @property
    def key(self) -> ProcessKey:
        """The process's key."""
        return self._record.key

    @property
    def order(self) -> StartOrder:
        """The order that started it."""
        return self._order

    def stop(self, plan: StopPlan, message: str = "") -> None:
        """Journals and starts the stop. Called again, it can only shorten the drain; the first reason stays."""
        self._deadline_s = min(self._deadline_s, self._context.clock() + plan.drain_time_s)
        if self._record.stop is None and self._record.alive:
            self._write(state="stopping", stop=plan, message=message)
        self._stop_changed.set()

    async def run(self) -> None:
        """Runs the lifecycle; returns when the exit is journalled. If cancelled, it leaves the process running."""
        try:
            group = self._group or self._spawn()
        except SpawnError as error:
            self._finish("spawn_failed", None, str(error))
            return
        try:
            await wait_first(self._watch_health(), self._rotate_log(), self._stop_changed.wait(), group.exited.wait())
            if self._record.stop is not None:
                await self._drain(group)
            await self._kill(group)
            plan = self._record.stop
            self._finish(plan.reason if plan else "exit", group.exit_code, self._record.message)
        finally:
            group.close()

    def _spawn(self) -> ProcessGroup:
        context, key, order = self._context, self._record.key, self._order
        folders = context.folders
        port = context.ports.allocate() if order.needs_port else None
        self._amend(port=port)  # before the start: if the agent dies in between, the next agent knows the port
        argv = engine_argv(order, port)
        env = engine_env(os.environ, order, key, port=port, data_dir=folders.data_dir, gpu_index=context.gpu_index)
        try:
            work, output = folders.work(key.instance), folders.log(key)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        pid = spawn(argv, env, work=work, log=output)
        self._amend(pid=pid, pid_start_ticks=start_ticks(pid))
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=pid, port=port)
        return ProcessGroup(pid, key, str(folders.data_dir))

    async def _watch_health(self) -> None:
        """Probes until the process must be killed because it does not answer."""
        order, port, clock = self._order, self._record.port, self._context.clock
        probe = order.probe or _PORT_PROBE
        limits = HealthLimits(probe.failures, order.start_timeout_s, order.liveness_timeout_s)
        health = self._first_health()
        began_s, first_delays = clock(), iter(_FIRST_PROBES_S)
        log_state = self._context.folders.log_state(self.key)
        while True:
            if port is None:
                answered: bool | None = health.ready or clock() - began_s >= _ALIVE_AFTER_S
            else:
                answered = await self._context.prober.probe(order.probe, port)
            health = after_probe(health, limits, answered=answered, now_s=clock())
            if not health.ready:
                before, log_state = log_state, self._context.folders.log_state(self.key)
                if log_state != before:
                    health = replace(health, progress_s=clock())
            reason = kill_reason(health, limits, clock()) if answered is not None else None
            if reason is not None:
                self.stop(StopPlan(reason=reason, drain_time_s=0.0), self._kill_message(reason))
                return
            self._report_health(health)
            await asyncio.sleep(probe.period_s if health.ready else next(first_delays, _FIRST_PROBES_S[-1]))

    def _kill_message(self, reason: str) -> str:
        if reason == "start_timeout":
            return f"no answer to its probe, and nothing logged for {self._order.start_timeout_s:g} s"
        return f"unhealthy for {self._order.liveness_timeout_s:g} s"

    def _first_health(self) -> ProcessHealth:
        record, now_s = self._record, self._context.clock()
        state = record.state if record.state in ("running", "unhealthy") else "starting"
        since = now_s if state == "unhealthy" else None
        return ProcessHealth(state=state, progress_s=now_s, ready=record.ready, unhealthy_s=since)

    def _report_health(self, health: ProcessHealth) -> None:
        if (health.state, health.ready) == (self._record.state, self._record.ready):
            return
        first = health.ready and not self._record.ready
        self._write(
            state=health.state, ready=health.ready, ready_s=self._context.clock() if first else self._record.ready_s
        )

    async def _rotate_log(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            try:
                await asyncio.to_thread(self._context.folders.rotate_log, self.key)
            except OSError as error:  # the engine keeps running on a full disk
                log.warning("log not rotated", instance=self.key.instance, error=str(error))

    async def _drain(self, group: ProcessGroup) -> None:
        """Waits for requests in flight, then sends SIGTERM; returns at the exit or when the drain time is over."""
        if self._record.state != "stopping":
            self._write(state="stopping")
        instance, clock = self.key.instance, self._context.clock
        began_s = clock()
        while not group.exited.is_set() and self._context.in_flight.count(instance):
            left_s = (self._deadline_s - began_s) * _REQUESTS_SHARE - (clock() - began_s)
            if left_s <= 0:
                break
            await self._wait_exit(left_s, group, self._context.in_flight.until_idle(instance))
        if self._deadline_s > clock():
            group.terminate()
        while not group.exited.is_set() and (left_s := self._deadline_s - clock()) > 0:
            await self._wait_exit(left_s, group)

    async def _wait_exit(self, limit_s: float, group: ProcessGroup, *others: Coroutine[Any, Any, None]) -> None:
        """Waits for the exit, for an earlier deadline, or for one of the others."""
        self._stop_changed.clear()
        await wait_first(group.exited.wait(), self._stop_changed.wait(), *others, limit_s=limit_s)

    async def _kill(self, group: ProcessGroup) -> None:
        """Kills what is left. While a process survives, it may hold its GPUs, so no exit is reported."""
        while left := await group.kill(_KILL_LIMIT_S):
            pids = ", ".join(map(str, left[:8]))
            message = f"still alive {_KILL_LIMIT_S:g} s after SIGKILL: pid {pids}"
            if self._record.message != message:
                log.error("process group survives SIGKILL", instance=self.key.instance, epoch=self.key.epoch, pids=pids)
                self._write(message=message)

    def _finish(self, reason: str, exit_code: int | None, message: str) -> None:
        if self._record.port is not None:
            self._context.ports.release(self._record.port)
        self._write(state="exited", reason=reason, exit_code=exit_code, message=message, order=None, stop=None)

    def _amend(self, **changes: object) -> None:
        self._record = self._record.model_copy(update=changes)
        self._context.journal.amend(self._record)

    def _write(self, **changes: object) -> None:
        before = self._record.state
        self._record = self._context.journal.record(self._record.model_copy(update=changes))
        record = self._record
        if record.state != before:
            log.info(
                "process state changed",
                instance=record.instance,
                epoch=record.epoch,
                rank=record.rank,
                state=record.state,
                reason=record.reason,
                exit_code=record.exit_code,
            )
        self._context.report(record)
