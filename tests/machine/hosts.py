"""GPU hosts of the ledger machine: the processes that run, and an agent over them with its real journal.

The agent uses the real `agent.decide`, journal and send queue; only processes and wire are simulated. The running
processes are kept apart from the agent's knowledge, so that both can be compared with the ledger.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

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
from agent.link.send_queue import SendQueue
from agent.state.journal import Journal
from agent.state.process_records import HostProcess, ProcessKey, ProcessRecord, StopPlan
from controller.hub.session import Session
from schemas.wire import (
    Command,
    CommandResult,
    Hello,
    Inventory,
    ProcessReport,
    ReportAck,
    ReportedGpu,
    ReportedHost,
    StartOrder,
    Welcome,
)

GIB = 1024
GPU_MIB = 40 * GIB
_HISTORY_MAX = 200
_pids = itertools.count(1000)


class ConflictError(AssertionError):
    """Two processes on one device that exclude each other."""


@dataclass
class Link:
    """One connection: the hub's end is a real `Session`, the wire two queues."""

    session: Session
    controller: Any  # the `Controller` at the other end
    up: deque[ProcessReport | CommandResult] = field(default_factory=deque)
    hung_up: bool = False  # by the hub; the agent notices at its next exchange
    lost: deque[ProcessReport | CommandResult] = field(default_factory=deque)  # on their way when it broke


class Host:
    """A machine with GPUs. `running` is the truth; the journal is the agent's memory."""

    def __init__(self, name: str, gpus: dict[str, int], folder: Path) -> None:
        self.name = name
        self.gpus = gpus  # MiB by UUID, as plugged in now
        self.sizes = dict(gpus)  # without faults
        self.running: dict[ProcessKey, StartOrder] = {}
        self.worker_id: str | None = None
        self.powered = True
        self.frozen = False  # the agent is stopped, its processes are not
        self.boot = 1
        self.silent_s = 0.0
        self.link: Link | None = None
        self.send_queue = SendQueue()
        self.fenced: set[ProcessKey] = set()  # may outlive their claims: no agent was running to stop them in time
        self.history: deque[Command] = deque(maxlen=_HISTORY_MAX)  # every command ever sent to it
        self._pids: dict[ProcessKey, int] = {}
        self._folder = folder
        self.journal: Journal | None = None
        self.start_agent()

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"

    def start_agent(self) -> None:
        """Opens the journal, adopts what runs, and records the end of what does not."""
        self.journal = Journal(self._folder)
        seen = [HostProcess(pid, pid, pid, 1, zombie=False, marked=key) for key, pid in self._pids.items()]
        plan = plan_adoption(self.journal.live(), self.boot_id, seen)
        assert not plan.clean_up
        strays = [key for key, pid in self._pids.items() if pid in plan.strays]
        for key in strays:
            self._gone(key)
        for record, leader in plan.adopt:
            self.journal.amend(replace(record, pid=leader.pid, pid_start_ticks=1))
        for record in plan.gone:
            self._write(record, state="exited", reason="gone", exit_code=None, order=None, stop=None)

    def stop_agent(self) -> None:
        """kill -9 of the agent; its processes stay."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None
        self.frozen = False
        self.cut()

    def power_off(self) -> None:
        self.stop_agent()
        self.powered = False
        self.running.clear()
        self._pids.clear()

    def power_on(self) -> None:
        self.powered = True
        self.boot += 1
        self.start_agent()

    def forget_worker(self) -> None:
        """Forgets its credential and term, as at a new join."""
        assert self.journal is not None
        self.journal.remember(credential=None, highest_term=0)
        self.worker_id = None

    def thaw(self) -> None:
        """The suspended agent goes on, and sees which processes have ended."""
        self.frozen = False
        if self.journal is not None:
            for record in self.journal.live():
                if record.key not in self.running:
                    self.end(record.key, -9)

    def cut(self) -> Link | None:
        """Breaks the connection; messages on their way may still arrive, late."""
        link, self.link = self.link, None
        if link is not None:
            link.lost.extend(link.up)
            link.up.clear()
        return link

    def inventory(self) -> Inventory:
        host = ReportedHost(
            os="linux", arch="x86_64", hostname=self.name, driver="580.95", memory_mib=1024 * GIB, cpu_milli=64_000,
            simulated=True,
        )  # fmt: skip
        return Inventory(host=host, gpus=tuple(self._look().values()))

    def hello(self) -> Hello:
        assert self.journal is not None
        self.send_queue.clear()
        return Hello(
            agent_version="1",
            boot_id=self.boot_id,
            highest_term=self.journal.host_state.highest_term,
            report_seq=self.journal.host_state.report_seq,
            advertise="127.0.0.1:7070",
            proxy_port=7070,
            inventory=self.inventory(),
            processes=tuple(record.report() for record in self.journal.unacknowledged()),
        )

    def hear(self, message: Any) -> None:
        """The agent's reaction to one message of the hub."""
        assert self.journal is not None
        self.silent_s = 0.0
        match message:
            case Welcome():
                self.journal.remember(
                    worker=message.worker, highest_term=max(message.term, self.journal.host_state.highest_term)
                )
            case Command():
                self.history.append(message)
                self.send_queue.add(self.obey(message))
            case ReportAck(seq=seq):
                self.journal.acknowledge(seq)
            case _:  # a rejection
                self.cut()

    def obey(self, command: Command) -> CommandResult:
        """Decides, journals, acts, answers, as the supervisor does."""
        journal = self.journal
        assert journal is not None
        state = AgentState(
            journal.host_state.highest_term, journal.epochs, journal.processes, journal.live(), self._look()
        )
        action = decide(state, command)
        journal.remember(highest_term=max(command.term, state.highest_term))
        match action:
            case Refuse(code, message):
                kept = refused_record(command, action, self.boot_id)
                if kept is not None and kept.key not in journal.processes:
                    journal.record(kept)
                return CommandResult(command_id=command.command_id, outcome="refused", code=code, message=message)
            case Spawn(key, order):
                self._spawn(key, order)
            case Stop(key, order):
                plan = StopPlan(reason="stopped", drain_time_s=order.drain_time_s)
                self._write(journal.processes[key], state="stopping", stop=plan)
            case RecordNeverStarted(key):
                tomb = ProcessRecord(
                    instance=key.instance, epoch=key.epoch, rank=key.rank, state="exited", reason="gone",
                    boot_id=self.boot_id,
                )  # fmt: skip
                self._write(tomb)
            case ReportAgain(key):
                self.send_queue.add_report(journal.processes[key].report())
        return CommandResult(command_id=command.command_id, outcome="accepted")

    def progress(self, key: ProcessKey, state: str) -> None:
        """A process changes between starting, running and unhealthy."""
        record = self._record(key)
        if record is not None and record.state != "stopping":
            self._write(record, state=state, ready=True)

    def end(self, key: ProcessKey, code: int) -> None:
        """A process ends, by a stop or by itself. Only a running agent sees it."""
        record = self._record(key)
        self._gone(key)
        if record is not None:
            reason = record.stop.reason if record.stop else "exit"
            self._write(record, state="exited", reason=reason, exit_code=code, order=None, stop=None)

    def pass_silence(self, seconds: float) -> None:
        """Time without a controller's message; kills what must not outlive the connection."""
        self.silent_s += seconds
        for key, order in list(self.running.items()):
            after_s = order.stop_on_disconnect_after_s
            if after_s is not None and self.silent_s > after_s and self.journal is not None and not self.frozen:
                self._write(self.journal.processes[key], stop=StopPlan(reason="disconnected", drain_time_s=0.0))
                self.end(key, -15)

    def check(self) -> None:
        """Checks that no device has two processes that exclude each other, or more memory in use than it has."""
        for uuid, mib in self.sizes.items():
            held = [(k, c) for k, order in self.running.items() for c in order.claims if c.device == uuid]
            if sum(c.memory_mib for _, c in held) > mib or (len(held) > 1 and any(c.exclusive for _, c in held)):
                raise ConflictError(f"{uuid} ({mib} MiB) on {self.name}: {held}")
        doubled = [(k.instance, k.rank) for k in self.running]
        if len(set(doubled)) != len(doubled):
            raise ConflictError(f"an instance runs twice on {self.name}: {sorted(self.running)}")

    def _spawn(self, key: ProcessKey, order: StartOrder) -> None:
        intent = ProcessRecord(
            instance=key.instance, epoch=key.epoch, rank=key.rank, state="starting", boot_id=self.boot_id, order=order
        )
        self._write(intent)
        self.running[key] = order
        self._pids[key] = next(_pids)
        self.check()

    def _record(self, key: ProcessKey) -> ProcessRecord | None:
        return None if self.journal is None or self.frozen else self.journal.processes[key]

    def _gone(self, key: ProcessKey) -> None:
        self.running.pop(key, None)
        self._pids.pop(key, None)

    def _write(self, record: ProcessRecord, **changes: Any) -> None:
        assert self.journal is not None
        self.send_queue.add_report(self.journal.record(replace(record, **changes)).report())

    def _look(self) -> dict[str, ReportedGpu]:
        return {
            uuid: ReportedGpu(uuid=uuid, index=n, model="H100", memory_mib=mib, compute_capability="9.0")
            for n, (uuid, mib) in enumerate(sorted(self.gpus.items()))
        }
