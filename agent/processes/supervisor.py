"""All processes of this host: handles commands, stops all at a shutdown, and owns their tasks."""

import asyncio
from typing import Final, Self

import structlog

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
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.processes.adoption import EngineAdoption
from agent.processes.lifecycle import EngineProcess
from agent.processes.process_context import ProcessContext
from agent.state.process_records import ProcessKey, ProcessRecord, StopPlan
from schemas.wire import Command, CommandResult

_FENCE_CHECK_S: Final = 0.5

log = structlog.get_logger()


class Supervisor:
    """An async context: entering adopts, leaving ends the tasks but not the processes."""

    def __init__(self, context: ProcessContext, heartbeat: ControllerHeartbeat) -> None:
        self._context = context
        self._journal = context.journal
        self._heartbeat = heartbeat
        self._running: dict[ProcessKey, EngineProcess] = {}
        self._tasks = asyncio.TaskGroup()
        self._own_tasks: list[asyncio.Task[None]] = []
        self._process_tasks: set[asyncio.Task[None]] = set()
        self._shutting_down = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        await EngineAdoption(self._context, self._launch).run()
        self._own_tasks = [
            self._tasks.create_task(self._stop_on_disconnect(), name="stop on disconnect"),
            self._tasks.create_task(self._context.containers.sweep(), name="stray containers"),
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in (*self._own_tasks, *self._process_tasks):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._context.ports.close()

    def handle(self, command: Command) -> CommandResult:
        """Decides, journals, and starts the action. A repeated command changes nothing."""
        state = AgentState(
            highest_term=self._journal.host_state.highest_term,
            epochs=self._journal.epochs,
            processes=self._journal.processes,
            live=self._journal.live(),
            devices=self._context.inventory.devices,
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
        """Refuses starts, and stops every process within its drain time and `drain_cap_s`. The caller sets a limit."""
        self.refuse_starts()
        for process in tuple(self._running.values()):
            drain_s = min(process.order.drain_time_s, drain_cap_s)
            process.stop(StopPlan(reason="agent_stopped", drain_time_s=drain_s))
        while self._process_tasks:
            await asyncio.wait(self._process_tasks)

    @property
    def shortest_fence_s(self) -> float:
        """The shortest silence of the controller that stops a process here; infinite if none does."""
        return min((after_s for _, after_s in self._fenced()), default=float("inf"))

    def refuse_starts(self) -> None:
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

    async def _stop_on_disconnect(self) -> None:
        """Stops processes at the controller's silence for longer than their fence."""
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
        """The processes that stop at the controller's silence, with the seconds."""
        return [
            (process, process.order.stop_on_disconnect_after_s)
            for process in self._running.values()
            if process.order.stop_on_disconnect_after_s is not None
        ]
