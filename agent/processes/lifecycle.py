"""The lifecycle of one process on this host: spawn or adopt, probe, stop, report. One task per process."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from agent.clock import Clock
from agent.containers.runtime import ContainerRuntime
from agent.decide.health import HealthLimits, ProcessHealth, after_probe, kill_reason
from agent.errors import SpawnError
from agent.in_flight import InFlightRequests
from agent.journal import Journal
from agent.model_cache.fetch_process import FetchError
from agent.model_cache.fetches import Fetches
from agent.process_records import ProcessKey, ProcessRecord, StopPlan
from agent.processes.cgroups import Cgroups
from agent.processes.folders import InstanceFolders
from agent.processes.gpu_memory import memory_back
from agent.processes.oom_kills import oom_kills
from agent.processes.ports import PortAllocator
from agent.processes.probe import Prober
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import start_ticks
from agent.processes.running import Running
from agent.processes.spawn import engine_argv, engine_env, spawn
from agent.wait_first import wait_first
from schemas.exit_causes import KILLED_FOR_MEMORY, telling_line
from schemas.image_names import repository_of
from schemas.wire import ProbeOrder, StartOrder

_ALIVE_AFTER_S: Final = 0.2  # without a port, a process is running after this time
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # short at first, so that a fast start is noticed at once
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing without an ordered probe
_LOG_CHECK_S: Final = 1.0
_REQUESTS_SHARE: Final = 0.8  # share of the drain time for requests in flight; the rest follows SIGTERM
_KILL_LIMIT_S: Final = 5.0
_TAIL_LIMIT_S: Final = 5.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What all processes of one agent share.

    `report` queues a report, `gpu_index` returns a GPU's present index, and `gpus_listing` the GPUs on which the driver
    listed a process at the newest reading.
    """

    journal: Journal
    folders: InstanceFolders
    ports: PortAllocator
    prober: Prober
    in_flight: InFlightRequests
    clock: Clock
    boot_id: str
    cgroups: Cgroups
    report: Callable[[ProcessRecord], None]
    gpu_index: Callable[[str], int | None]
    gpus_listing: Callable[[ProcessKey], tuple[str, ...]]
    fetches: Fetches
    containers: ContainerRuntime


class EngineProcess:
    """Owns one process from its spawn to the end of its group. Every state is journalled before it is reported."""

    def __init__(
        self, record: ProcessRecord, order: StartOrder, context: ProcessContext, group: Running | None = None
    ) -> None:
        """`group` is the adopted process's; None: the process is yet to be spawned, or its container to be adopted."""
        self._record = record
        self._order = order
        self._context = context
        self._group = group
        self._deadline_s = float("inf")
        self._stop_changed = asyncio.Event()
        self._hub_is_away = False
        self._oom_kills = deque([oom_kills()], maxlen=2)  # the reading before the last, at least
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
        group = self._group
        if group is None:
            try:
                if self._order.fetches or self._order.container is not None:
                    await wait_first(self._fetch(), self._stop_changed.wait())
                group = None if self._record.stop is not None else await self._start()
            except (FetchError, SpawnError) as error:
                self._finish("spawn_failed", None, str(error))
                return
        if group is None:  # stopped before it was spawned
            self._finish(self._record.stop.reason if self._record.stop else "stopped", None, self._record.message)
            return
        try:
            await wait_first(
                self._watch_health(group), self._rotate_log(), self._stop_changed.wait(), group.exited.wait()
            )
            if self._record.stop is not None:
                await self._drain(group)
            await self._kill(group)
            plan = self._record.stop
            message = self._record.message if plan else await self._why(group)
            held = await memory_back(self.key, self._context.gpus_listing, self._context.clock)
            told = "; ".join(filter(None, (message, group.end_note, held)))
            self._finish(plan.reason if plan else group.end, group.exit_code, told)
            await group.forget()
        finally:
            await group.aclose()

    def adopt_container(self) -> None:
        """Takes over the container that an earlier agent started, or was about to start."""
        if self._record.image_digest is not None and self._record.image_repository is None:  # by an earlier version
            self._amend(image_repository=_repository(self._order))
        self._group = self._context.containers.adopt(self._record, self._note_pid, self._context.boot_id)

    async def _fetch(self) -> None:
        """Returns once models and image are here. Progress is reported as the message of the starting process."""
        order, fetches = self._order, self._context.fetches
        for fetch in order.fetches:
            if not await fetches.provide(fetch, order.env, order.start_timeout_s, self._tell):
                self._hub_is_away = True
        if order.container is not None:
            await self._context.containers.pull(order.container, order.start_timeout_s, self._tell)
        if self._record.message:
            self._tell("")

    def _tell(self, message: str) -> None:
        if self._record.stop is None and message != self._record.message:
            self._write(message=message)

    async def _why(self, group: Running) -> str:
        """What is known of an end that nothing asked for: the kernel's kill, or the line of the log that tells most."""
        if killed := group.oom_message(self._order.host_memory_mib):
            return killed
        if group.end == "gone":
            return ""
        if not group.counts_oom_kills and group.exit_code == -signal.SIGKILL and oom_kills() > self._oom_kills[0]:
            return KILLED_FOR_MEMORY
        if group.exit_code == 0 and not self._order.needs_port:
            return self._record.message  # a task that is done
        try:
            async with asyncio.timeout(_TAIL_LIMIT_S):
                tail = await asyncio.to_thread(self._context.folders.log_tail, self.key)
        except OSError as error:  # TimeoutError is one
            log.warning("log not read", instance=self.key.instance, error=str(error))
            return self._record.message
        return telling_line(tail) or self._record.message

    async def _start(self) -> Running | None:
        """Starts it on this host, or in a container; None: it was stopped before it ran."""
        if self._order.container is None:
            return self._spawn()
        record = self._record
        self._amend(port=self._context.ports.allocate() if self._order.needs_port else None)
        started = await self._context.containers.start(
            self._record,
            self._order,
            self._note_pid,
            given_up=self._stop_changed,
            tell=lambda message: self._write(message=message),
            offline=self._hub_is_away,
        )
        if started is None:
            return None
        container, digest = started
        self._amend(image_digest=digest, image_repository=_repository(self._order))
        log.info("container started", instance=record.instance, epoch=record.epoch, port=self._record.port)
        return container

    def _note_pid(self, pid: int, ticks: int | None) -> None:
        if self._record.alive:
            self._amend(pid=pid, pid_start_ticks=ticks)

    def _spawn(self) -> ProcessGroup:
        context, key, order = self._context, self._record.key, self._order
        folders = context.folders
        port = context.ports.allocate() if order.needs_port else None
        self._amend(port=port)  # before the start: if the agent dies in between, the next agent knows the port
        argv = engine_argv(order, port)
        env = engine_env(
            os.environ,
            order,
            key,
            port=port,
            data_dir=folders.data_dir,
            gpu_index=context.gpu_index,
            cache_dir=context.fetches.path,
        )
        if self._hub_is_away:
            env.setdefault("HF_HUB_OFFLINE", "1")
        try:
            work, output = folders.work(key.instance), folders.log(key)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        cgroup = context.cgroups.make(key, order.host_memory_mib)
        try:
            pid = spawn(argv, env, work=work, log=output)
        except SpawnError:
            if cgroup is not None:
                cgroup.remove()
            raise
        if cgroup is not None:
            try:
                cgroup.add(pid)
            except OSError as error:
                log.warning("engine not put into its cgroup", instance=key.instance, error=str(error))
        self._amend(pid=pid, pid_start_ticks=start_ticks(pid))
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=pid, port=port)
        return ProcessGroup(pid, key, str(folders.data_dir), cgroup)

    async def _watch_health(self, group: Running) -> None:
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
                answered = await self._context.prober.probe(order.probe, port, is_proxied=group.is_proxied)
                if group.is_unknown and not answered:
                    answered = None
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
            self._oom_kills.append(oom_kills())
            try:
                await asyncio.to_thread(self._context.folders.rotate_log, self.key)
            except OSError as error:  # the engine keeps running on a full disk
                log.warning("log not rotated", instance=self.key.instance, error=str(error))

    async def _drain(self, group: Running) -> None:
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

    async def _wait_exit(self, limit_s: float, group: Running, *others: Coroutine[Any, Any, None]) -> None:
        """Waits for the exit, for an earlier deadline, or for one of the others."""
        self._stop_changed.clear()
        await wait_first(group.exited.wait(), self._stop_changed.wait(), *others, limit_s=limit_s)

    async def _kill(self, group: Running) -> None:
        """Kills what is left. While a process survives, it may hold its GPUs, so no exit is reported."""
        while left := await group.kill(_KILL_LIMIT_S):
            message = f"still alive {_KILL_LIMIT_S:g} s after SIGKILL: {left}"
            if self._record.message != message:
                log.error("process group survives SIGKILL", instance=self.key.instance, epoch=self.key.epoch, left=left)
                self._write(message=message)

    def _finish(self, reason: str, exit_code: int | None, message: str) -> None:
        self._context.fetches.note_use({fetch.repo for fetch in self._order.fetches})
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


def _repository(order: StartOrder) -> str | None:
    """Where the image of its container is from; None: it has none."""
    return None if order.container is None else repository_of(order.container.image)
