"""All processes of this host: handles commands, adopts what runs already, stops all at a shutdown. Owns their tasks."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final, Self

import structlog
from msgspec.structs import replace

from agent.controller_heartbeat import ControllerHeartbeat
from agent.decide.adoption import plan_adoption
from agent.decide.commands import (
    AgentState,
    RecordNeverStarted,
    Refuse,
    ReportAgain,
    Spawn,
    Stop,
    decide,
    refused_record,
)
from agent.inventory import InventoryWatch
from agent.process_records import HostProcess, ProcessKey, ProcessRecord, StopPlan
from agent.processes.cgroups import oom_message
from agent.processes.end_record import EndRecord
from agent.processes.engine_parent import EngineParent
from agent.processes.lifecycle import EngineProcess
from agent.processes.process_context import ProcessContext
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import list_marked_processes
from schemas.wire import Command, CommandResult

_FENCE_CHECK_S: Final = 0.5
_SCAN_LIMIT_S: Final = 60.0
_PRUNE_LIMIT_S: Final = 60.0

log = structlog.get_logger()


class Supervisor:
    """An async context: entering adopts, leaving ends the tasks but not the processes."""

    def __init__(self, context: ProcessContext, inventory: InventoryWatch, heartbeat: ControllerHeartbeat) -> None:
        self._context = context
        self._journal = context.journal
        self._inventory = inventory
        self._heartbeat = heartbeat
        self._running: dict[ProcessKey, EngineProcess] = {}
        self._tasks = asyncio.TaskGroup()
        self._own_tasks: list[asyncio.Task[None]] = []
        self._process_tasks: set[asyncio.Task[None]] = set()
        self._shutting_down = False

    async def __aenter__(self) -> Self:
        """Adopts what still runs, records the rest as exited, kills strays."""
        await self._tasks.__aenter__()
        await self._adopt()
        self._own_tasks = [
            self._tasks.create_task(self._stop_on_disconnect(), name="stop on disconnect"),
            self._tasks.create_task(self._context.containers.sweep(), name="stray containers"),
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends the tasks; processes that still run are left to the next agent."""
        for task in (*self._own_tasks, *self._process_tasks):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._context.ports.close()

    def handle(self, command: Command) -> CommandResult:
        """Decides, journals, starts the action, and answers. A repeated command changes nothing."""
        state = AgentState(
            highest_term=self._journal.facts.highest_term,
            epochs=self._journal.epochs,
            processes=self._journal.processes,
            live=self._journal.live(),
            devices=self._inventory.devices,
            shutting_down=self._shutting_down,
        )
        action = decide(state, command)
        self._journal.remember(highest_term=max(command.term, state.highest_term))
        if isinstance(action, Refuse):
            record = refused_record(command, action, self._context.boot_id)
            if record is not None and record.key not in self._journal.processes:
                self._journal.record(record)
            log.info("command refused", instance=command.instance, verb=command.verb, code=action.code)
            return CommandResult(
                command_id=command.command_id, outcome="refused", code=action.code, message=action.message
            )
        self._act(action)
        return CommandResult(command_id=command.command_id, outcome="accepted")

    async def stop_all(self, drain_cap_s: float) -> None:
        """Stops every process gracefully, each within its drain time and `drain_cap_s`; returns when all have exited.

        Starts are refused from now on. The caller sets the limit.
        """
        self.refuse_starts()
        for process in tuple(self._running.values()):
            drain_s = min(process.order.drain_time_s, drain_cap_s)
            process.stop(StopPlan(reason="agent_stopped", drain_time_s=drain_s))
        while self._process_tasks:
            await asyncio.wait(self._process_tasks)

    @property
    def shortest_fence_s(self) -> float:
        """The shortest silence of the controller that stops a process here, in seconds; infinite if none does."""
        return min((after_s for _, after_s in self._fenced()), default=float("inf"))

    def refuse_starts(self) -> None:
        """Refuses starts from now on, because the agent is shutting down."""
        self._shutting_down = True

    def _act(self, action: Spawn | Stop | RecordNeverStarted | ReportAgain) -> None:
        match action:
            case Spawn(key, order):
                intent = ProcessRecord(
                    **key._asdict(),
                    deployment=order.deployment,
                    state="starting",
                    boot_id=self._context.boot_id,
                    order=order,
                )
                record = self._journal.record(intent)
                self._context.report(record)
                self._launch(EngineProcess(record, order, self._context))
            case Stop(key, stop):
                self._running[key].stop(StopPlan(reason="stopped", drain_time_s=stop.drain_time_s))
            case RecordNeverStarted(key):
                never_started = ProcessRecord(
                    **key._asdict(),
                    state="exited",
                    reason="gone",
                    message="never started on this host",
                    boot_id=self._context.boot_id,
                )
                self._context.report(self._journal.record(never_started))
            case ReportAgain(key):
                self._context.report(self._journal.processes[key])

    def _launch(self, process: EngineProcess) -> None:
        key = process.key
        self._running[key] = process
        task = self._tasks.create_task(self._run(process), name=f"process {key.instance}/{key.epoch}")
        self._process_tasks.add(task)
        task.add_done_callback(self._process_tasks.discard)

    async def _run(self, process: EngineProcess) -> None:
        try:
            await process.run()
        finally:
            self._running.pop(process.key, None)

    async def _adopt(self) -> None:
        folder = str(self._context.folders.data_dir)
        async with asyncio.timeout(_SCAN_LIMIT_S):
            found = await asyncio.to_thread(list_marked_processes, folder)
        live = self._journal.live()
        contained = {record.key for record in live if record.order is not None and record.order.container is not None}
        plan = plan_adoption(
            [record for record in live if record.key not in contained],
            self._context.boot_id,
            [process for process in found if process.marked not in contained],
        )
        for pid in plan.strays:
            log.warning("stray process killed", pid=pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for record in plan.gone:
            if not self._adopt_ended(record, folder):
                self._record_gone(record)
        for record, leader in plan.adopt:
            self._adopt_process(record, leader, folder)
        for record in live:
            if record.key in contained:
                self._adopt_container(record)
        for record, left in plan.clean_up:
            if not self._adopt_ended(record, folder):
                stopping = replace(record, stop=StopPlan(reason="gone", drain_time_s=0.0))
                self._adopt_process(stopping, left, folder)
        self._context.folders.prune_ends({record.key for record in self._journal.live()})
        self._context.cgroups.prune([record.key for record in self._journal.live()])
        async with asyncio.timeout(_PRUNE_LIMIT_S):
            await asyncio.to_thread(self._context.folders.prune, {record.instance for record in self._journal.live()})

    def _adopt_process(self, record: ProcessRecord, leader: HostProcess, folder: str) -> None:
        end = self._end_record(record)
        record = replace(record, pid=leader.pid, pid_start_ticks=leader.start_ticks)
        alone, cgroup = self._alone(record), self._context.cgroups.find(record.key)
        parent = EngineParent.find(record.parent_pid, record.parent_start_ticks)
        try:
            group = ProcessGroup(
                *(leader.pid, record.key, folder, cgroup),
                uid=alone,
                parent=parent,
                record=end,
                unwatched=leader.zombie,
                serves=_serves(record),
            )
        except ProcessLookupError:
            if parent is not None:
                parent.close()
            if not self._adopt_ended(record, folder):
                self._record_gone(record)
            return
        self._journal.amend(record)
        log.info("process adopted", instance=record.instance, epoch=record.epoch, rank=record.rank, pid=record.pid)
        self._launch_adopted(record, group)

    def _adopt_ended(self, record: ProcessRecord, folder: str) -> bool:
        """Takes over what ended while no agent was running, and what is left of its group; False: its end is unknown.

        A host may have started again since: then the pid is another's, and only the record counts.
        """
        end = self._end_record(record)
        if record.pid is None or end.read() is None:
            return False
        alone, cgroup = self._alone(record), self._context.cgroups.find(record.key)
        group = ProcessGroup(
            *(record.pid, record.key, folder, cgroup),
            uid=alone,
            record=end,
            is_gone=True,
            unwatched=True,
            serves=_serves(record),
        )
        self._launch_adopted(record, group)
        return True

    def _end_record(self, record: ProcessRecord) -> EndRecord:
        return EndRecord(self._context.folders.end(record.key), record.pid, record.pid_start_ticks)

    def _alone(self, record: ProcessRecord) -> int | None:
        return record.uid if self._context.accounts.is_of_one_instance(record.uid) else None

    def _launch_adopted(self, record: ProcessRecord, group: ProcessGroup) -> None:
        if record.order is None:
            raise AssertionError(f"{record.key}: a live process must have its order")
        if record.port is not None:
            self._context.ports.lock(record.port)
        self._launch(EngineProcess(record, record.order, self._context, group))

    def _adopt_container(self, record: ProcessRecord) -> None:
        """Docker may be away now, so the process itself finds out whether its container still runs."""
        if record.order is None:
            raise AssertionError(f"{record.key}: a live process must have its order")
        if record.port is not None:
            self._context.ports.lock(record.port)
        process = EngineProcess(record, record.order, self._context)
        process.adopt_container()
        log.info("container adopted", instance=record.instance, epoch=record.epoch, rank=record.rank)
        self._launch(process)

    def _record_gone(self, record: ProcessRecord) -> None:
        limit_mib = None if record.order is None else record.order.host_memory_mib
        killed = oom_message(self._context.cgroups.find(record.key), limit_mib)
        changes = {
            "state": "exited",
            "reason": "gone",
            "exit_code": None,
            "message": killed or "exited while no agent was running",
            "order": None,
            "stop": None,
        }
        self._context.report(self._journal.record(replace(record, **changes)))

    async def _stop_on_disconnect(self) -> None:
        """Stops the processes whose fence the controller's silence exceeds."""
        while True:
            silent_s = self._heartbeat.silent_s()
            fenced = self._fenced()
            if fenced:
                self._heartbeat.save()
            for process, after_s in fenced:
                if silent_s > after_s:
                    process.stop(StopPlan(reason="disconnected", drain_time_s=process.order.drain_time_s))
            await asyncio.sleep(_FENCE_CHECK_S)

    def _fenced(self) -> list[tuple[EngineProcess, float]]:
        """The processes that stop at the controller's silence, and after how many seconds."""
        return [
            (process, process.order.stop_on_disconnect_after_s)
            for process in self._running.values()
            if process.order.stop_on_disconnect_after_s is not None
        ]


def _serves(record: ProcessRecord) -> bool:
    return record.order is not None and record.order.needs_port
