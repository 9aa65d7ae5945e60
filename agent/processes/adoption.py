"""Adoption: an agent that starts takes over engines of an earlier agent on its data folder."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from msgspec.structs import replace

from agent.decide.adoption import plan_adoption
from agent.processes.cgroups import oom_message
from agent.processes.engine_parent import EndRecord, EngineParent
from agent.processes.lifecycle import EngineProcess
from agent.processes.process_context import ProcessContext
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import list_marked_processes
from agent.state.process_records import HostProcess, ProcessRecord, StopPlan

_SCAN_LIMIT_S: Final = 60.0
_PRUNE_LIMIT_S: Final = 60.0

log = structlog.get_logger()


class EngineAdoption:
    """Adopts live engines, records the ends of others, and kills strays."""

    def __init__(self, context: ProcessContext, launch: Callable[[EngineProcess], None]) -> None:
        self._context = context
        self._launch = launch
        self._folder = str(context.folders.data_dir)

    async def run(self) -> None:
        """Runs once, before the agent handles commands."""
        context = self._context
        async with asyncio.timeout(_SCAN_LIMIT_S):
            processes = await asyncio.to_thread(list_marked_processes, self._folder)
        live = context.journal.live()
        contained = {record.key for record in live if record.order is not None and record.order.container is not None}
        plan = plan_adoption(
            [record for record in live if record.key not in contained],
            context.boot_id,
            [process for process in processes if process.marked not in contained],
        )
        for pid in plan.strays:
            log.warning("stray process killed", pid=pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for record in plan.gone:
            if not self._take_ended(record):
                self._record_gone(record)
        for record, leader in plan.adopt:
            self._adopt(record, leader)
        for record in live:
            if record.key in contained:
                self._adopt_container(record)
        for record, left in plan.clean_up:
            if not self._take_ended(record):
                stopping = replace(record, stop=StopPlan(reason="gone", drain_time_s=0.0))
                self._adopt(stopping, left)
        kept = context.journal.live()
        context.folders.prune_ends({record.key for record in kept})
        context.cgroups.prune([record.key for record in kept])
        async with asyncio.timeout(_PRUNE_LIMIT_S):
            await asyncio.to_thread(context.folders.prune, {record.instance for record in kept})

    def _adopt(self, record: ProcessRecord, leader: HostProcess) -> None:
        end = self._end_record(record)
        record = replace(record, pid=leader.pid, pid_start_ticks=leader.start_ticks)
        parent = EngineParent.find(record.parent_pid, record.parent_start_ticks)
        try:
            group = self._group(record, end, parent=parent, unwatched=leader.zombie)
        except ProcessLookupError:
            if parent is not None:
                parent.close()
            if not self._take_ended(record):
                self._record_gone(record)
            return
        self._context.journal.amend(record)
        log.info("process adopted", instance=record.instance, epoch=record.epoch, rank=record.rank, pid=record.pid)
        self._launch(self._process(record, group))

    def _take_ended(self, record: ProcessRecord) -> bool:
        """Takes over a process that ended without an agent, and the rest of its group; False if its end is unknown.

        After a reboot of the host the pid may be another process's: only the record of the end counts.
        """
        end = self._end_record(record)
        if record.pid is None or end.read() is None:
            return False
        self._launch(self._process(record, self._group(record, end, is_gone=True, unwatched=True)))
        return True

    def _adopt_container(self, record: ProcessRecord) -> None:
        """Docker may be away now, so the process finds out later whether its container runs."""
        process = self._process(record)
        process.adopt_container()
        log.info("container adopted", instance=record.instance, epoch=record.epoch, rank=record.rank)
        self._launch(process)

    def _process(self, record: ProcessRecord, group: ProcessGroup | None = None) -> EngineProcess:
        if record.order is None:
            raise AssertionError(f"{record.key}: a live process must have its order")
        if record.port is not None:
            self._context.ports.lock(record.port)
        return EngineProcess(record, record.order, self._context, group)

    def _group(
        self,
        record: ProcessRecord,
        end: EndRecord,
        *,
        parent: EngineParent | None = None,
        is_gone: bool = False,
        unwatched: bool = False,
    ) -> ProcessGroup:
        if record.pid is None:
            raise AssertionError(f"{record.key}: a process of a group must have its pid")
        return ProcessGroup(
            *(record.pid, record.key, self._folder, self._context.cgroups.find(record.key)),
            uid=record.uid if self._context.accounts.is_of_one_instance(record.uid) else None,
            parent=parent,
            record=end,
            is_gone=is_gone,
            unwatched=unwatched,
            serves=record.order is not None and record.order.needs_port,
        )

    def _end_record(self, record: ProcessRecord) -> EndRecord:
        return EndRecord(self._context.folders.end(record.key), record.pid, record.pid_start_ticks)

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
        self._context.report(self._context.journal.record(replace(record, **changes)))
