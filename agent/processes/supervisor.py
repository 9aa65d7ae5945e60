"""All processes of this host: takes orders, adopts what ran before, stops all at the end. Owns the engines' tasks."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Final, Self

import structlog

from agent.contact import Contact
from agent.decide import Entomb, Refuse, Repeat, Spawn, Stop, View, decide, tombstone
from agent.inventory import InventoryWatch
from agent.processes.adopt import plan_adoption
from agent.processes.child import Child
from agent.processes.engine import Engine, Tools
from agent.processes.procfs import Seen, marked_scan
from agent.records import Key, ProcessRecord, StopPlan
from schemas.wire import Command, CommandResult

_FENCE_CHECK_S: Final = 0.5
_SCAN_LIMIT_S: Final = 60.0
_PRUNE_LIMIT_S: Final = 60.0

log = structlog.get_logger()


class Supervisor:
    """An async context: entering adopts, leaving ends the tasks (the processes themselves are left as they are)."""

    def __init__(self, tools: Tools, inventory: InventoryWatch, contact: Contact) -> None:
        self._tools = tools
        self._journal = tools.journal
        self._inventory = inventory
        self._contact = contact
        self._engines: dict[Key, Engine] = {}
        self._tasks = asyncio.TaskGroup()
        self._service: list[asyncio.Task[None]] = []
        self._lives: set[asyncio.Task[None]] = set()
        self._shutting_down = False

    async def __aenter__(self) -> Self:
        """Adopts what still runs, buries what does not, kills strays."""
        await self._tasks.__aenter__()
        await self._adopt()
        self._service = [self._tasks.create_task(self._fence(), name="stop on disconnect")]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends the engines' tasks; processes that still run stay for the next agent."""
        for task in (*self._service, *self._lives):
            task.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._tools.ports.close()

    def handle(self, command: Command) -> CommandResult:
        """Decides, journals, sets the action going, and answers. Repeating a command changes nothing."""
        view = View(
            highest_term=self._journal.facts.highest_term,
            epochs=self._journal.epochs,
            processes=self._journal.processes,
            devices=self._inventory.devices,
            shutting_down=self._shutting_down,
        )
        action = decide(view, command)
        self._journal.remember(highest_term=max(command.term, view.highest_term))
        if isinstance(action, Refuse):
            kept = tombstone(command, action, self._tools.boot_id)
            if kept is not None and kept.key not in self._journal.processes:
                self._journal.record(kept)
            log.info("command refused", instance=command.instance, verb=command.verb, code=action.code)
            return CommandResult(
                command_id=command.command_id, outcome="refused", code=action.code, message=action.message
            )
        self._act(action)
        return CommandResult(command_id=command.command_id, outcome="accepted")

    def acknowledged(self, seq: int) -> None:
        """The controller has all reports up to `seq` on its disk."""
        self._journal.acknowledge(seq)

    async def stop_all(self, drain_cap_s: float) -> None:
        """Stops every process gracefully, each within its drain time and `drain_cap_s`; returns when all are gone.

        From now on starts are refused. The caller sets the limit.
        """
        self.refuse_starts()
        for engine in tuple(self._engines.values()):
            drain_s = min(engine.order.drain_time_s, drain_cap_s)
            engine.ask_stop(StopPlan(reason="agent_stopped", drain_time_s=drain_s))
        while self._lives:
            await asyncio.wait(self._lives)

    @property
    def shortest_fence_s(self) -> float:
        """The shortest silence of the controller that kills a process here, in seconds; infinite where none does."""
        fences = (engine.order.stop_on_disconnect_after_s for engine in self._engines.values())
        return min((fence for fence in fences if fence is not None), default=float("inf"))

    def refuse_starts(self) -> None:
        """The agent is about to end."""
        self._shutting_down = True

    def _act(self, action: Spawn | Stop | Entomb | Repeat) -> None:
        match action:
            case Spawn(key, order):
                intent = ProcessRecord(
                    instance=key.instance,
                    epoch=key.epoch,
                    rank=key.rank,
                    deployment=order.deployment,
                    state="starting",
                    boot_id=self._tools.boot_id,
                    order=order,
                )
                record = self._journal.record(intent)
                self._tools.emit(record)
                self._launch(Engine(record, order, self._tools))
            case Stop(key, stop):
                self._engines[key].ask_stop(StopPlan(reason="stopped", drain_time_s=stop.drain_time_s))
            case Entomb(key):
                tombstone = ProcessRecord(
                    instance=key.instance,
                    epoch=key.epoch,
                    rank=key.rank,
                    state="exited",
                    reason="gone",
                    message="never started here",
                    boot_id=self._tools.boot_id,
                )
                self._tools.emit(self._journal.record(tombstone))
            case Repeat(key):
                self._tools.emit(self._journal.processes[key])

    def _launch(self, engine: Engine) -> None:
        self._engines[engine.key] = engine
        life = self._tasks.create_task(self._live(engine), name=f"engine {engine.key.instance}/{engine.key.epoch}")
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(self, engine: Engine) -> None:
        try:
            await engine.run()
        finally:
            self._engines.pop(engine.key, None)

    async def _adopt(self) -> None:
        folder = str(self._tools.folders.data_dir)
        async with asyncio.timeout(_SCAN_LIMIT_S):
            seen = await asyncio.to_thread(marked_scan, folder)
        plan = plan_adoption(self._journal.live(), self._tools.boot_id, seen)
        for pid in plan.kill:
            log.warning("stray process killed", pid=pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for record in plan.bury:
            self._bury(record)
        for record, leader in plan.adopt:
            self._take_over(record, leader, folder)
        for record, left in plan.clear:
            doomed = record.model_copy(update={"stop": StopPlan(reason="gone", drain_time_s=0.0)})
            self._take_over(doomed, left, folder)
        async with asyncio.timeout(_PRUNE_LIMIT_S):
            await asyncio.to_thread(self._tools.folders.prune, {record.instance for record in self._journal.live()})

    def _take_over(self, record: ProcessRecord, leader: Seen, folder: str) -> None:
        record = record.model_copy(update={"pid": leader.pid, "pid_start_ticks": leader.start_ticks})
        try:
            child = Child(leader.pid, record.key, folder)
        except ProcessLookupError:
            self._bury(record)
            return
        if record.order is None:
            raise AssertionError(f"{record.key}: a live record keeps its order")
        if record.port is not None:
            self._tools.ports.hold(record.port)
        self._journal.amend(record)
        log.info("process adopted", instance=record.instance, epoch=record.epoch, rank=record.rank, pid=record.pid)
        self._launch(Engine(record, record.order, self._tools, child))

    def _bury(self, record: ProcessRecord) -> None:
        changes = {
            "state": "exited",
            "reason": "gone",
            "exit_code": None,
            "message": "ended while no agent watched",
            "order": None,
            "stop": None,
        }
        self._tools.emit(self._journal.record(record.model_copy(update=changes)))

    async def _fence(self) -> None:
        """Kills what must not outlive the controller's silence."""
        while True:
            fences = {
                key: engine.order.stop_on_disconnect_after_s
                for key, engine in self._engines.items()
                if engine.order.stop_on_disconnect_after_s is not None
            }
            silent_s = self._contact.silent_s()
            if fences:
                self._contact.keep()
            for key, after_s in fences.items():
                if silent_s > after_s:
                    engine = self._engines[key]
                    engine.ask_stop(StopPlan(reason="disconnected", drain_time_s=engine.order.drain_time_s))
            await asyncio.sleep(_FENCE_CHECK_S)
