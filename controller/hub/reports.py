"""Writes agents' process reports and answers to commands, batched over all connections."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from msgspec.structs import replace

from controller.domain.access.redaction import plain, quote
from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.hub.write_queue import Unwritten, WriteQueue
from controller.runtime.clock import Clock
from controller.runtime.lease import read_term
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.deployments import commands, processes
from schemas.exit_causes import KILLED_FOR_MEMORY
from schemas.wire import (
    GPU_MEMORY_HELD,
    MAX_PROCESSES,
    MAX_TEXT,
    Command,
    CommandResult,
    ProcessReport,
    ReportAck,
    StopOrder,
)

BATCH: Final = 1_000
STRAY_DRAIN_S: Final = 10.0
STRAY_RESEND_S: Final = 5.0
STRAYS_NAMED: Final = 50  # of one agent in one transaction, each by an event of its own

_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Unwritten(Unwritten):
    """The unwritten reports and answers of one connection: of each process only the newest report."""

    session: Session
    reports: dict[_Key, ProcessReport] = field(default_factory=dict)
    results: dict[int, CommandResult] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reports) + len(self.results)

    def add_newer(self, newer: Self) -> None:
        self.reports.update(newer.reports)
        self.results.update(newer.results)


class ReportWriter:
    """One writer for all connections. `answered` is called with workers whose answers allow further commands."""

    def __init__(self, database: Database, clock: Clock, answered: Callable[[str], None]) -> None:
        self._database = database
        self._clock = clock
        self._answered = answered
        self.queue = WriteQueue(clock, _Unwritten, keep_ended=True)

    def report(self, session: Session, report: ProcessReport) -> None:
        """Queues a report; it is acknowledged once it is durable."""
        unwritten, report = self.queue.entry(session), stored(report)
        key = key_of(report)
        known = unwritten.reports.get(key)
        if known is None or report.seq > known.seq:
            unwritten.reports[key] = report
        self._added(unwritten)

    def judge_orphans(self, session: Session) -> None:
        """Writes orphans' reports again: if the leader has decided, each is the ledger's or a stray."""
        orphans = list(session.orphans.values())
        session.orphans.clear()
        for report in orphans:
            self.report(session, report)

    def result(self, session: Session, result: CommandResult) -> None:
        session.unanswered.pop(result.command_id, None)
        if result.command_id > 0:  # 0 is the stop of a stray, which has no row
            unwritten = self.queue.entry(session)
            unwritten.results[result.command_id] = result
            self._added(unwritten)

    async def run(self) -> None:
        await self.queue.run("reports", self._write, batch_size=BATCH)

    def _added(self, unwritten: _Unwritten) -> None:
        if len(unwritten) > MAX_PROCESSES:
            # Dropped: the next hello reports all processes.
            self.queue.drop(unwritten.session)
            unwritten.session.cut("too many unwritten reports; connect again")
        self.queue.added()

    async def _write(self, batch: list[_Unwritten]) -> None:
        async with self._database.transaction() as connection:
            held = await processes.lock_sessions(connection, [(p.session.worker_id, p.session.number) for p in batch])
            current = [p for p in batch if (p.session.worker_id, p.session.number) in held]
            # Reports first, because a removal of an instance locks its row before its commands.
            written = await processes.write_reports(connection, _reports(current))
            answered = await commands.write_answers(connection, _answers(current))
            await write_events(connection, _events(current, written))
            term = await read_term(connection)
            await notify(connection, "process", answered | written.deployments)
        session_of = {p.session.worker_id: p.session for p in current}  # a worker has only one newest session
        for orphan in written.orphans:
            session_of[orphan.worker_id].orphans[key_of(orphan.report)] = orphan.report
        self._after(batch, held, written.strays, term)

    def _after(
        self, batch: list[_Unwritten], held: set[tuple[str, int]], strays: list[processes.Stray], term: int
    ) -> None:
        """Sends acknowledgements and stops of strays after the commit, and allows further commands."""
        strays_of = defaultdict(list)
        for stray in strays:
            strays_of[stray.worker_id].append(stray)
        for unwritten in batch:
            session = unwritten.session
            if (session.worker_id, session.number) not in held:
                session.cut("a newer connection of this worker has taken over")
                continue
            for key, report in unwritten.reports.items():
                if report.state == "exited":
                    session.strays.pop(key, None)
                    session.orphans.pop(key, None)
            self.stop_strays(session, strays_of[session.worker_id], term)
            if unwritten.reports:
                session.send(ReportAck(seq=max(report.seq for report in unwritten.reports.values())))
            if unwritten.results:
                self._answered(session.worker_id)

    def stop_strays(self, session: Session, strays: Iterable[processes.Stray], term: int) -> None:
        """Sends stops of processes without claims; the dispatcher repeats them until the processes are gone."""
        now = self._clock.monotonic()
        for stray in strays:
            key = (stray.instance, stray.epoch, stray.rank)
            if now - session.strays.get(key, -STRAY_RESEND_S) >= STRAY_RESEND_S:
                session.strays[key] = now
                session.send(stop_stray_command(stray.instance, stray.epoch, stray.rank, term))
        if len(session.strays) > MAX_PROCESSES:
            session.cut("too many processes without claims; connect again")


def stop_stray_command(instance: str, epoch: int, rank: int, term: int) -> Command:
    """The command that stops a stray. It has no row: its id is 0, and its answer is dropped."""
    stop = StopOrder(drain_time_s=STRAY_DRAIN_S, reason="it has no claims")
    return Command(command_id=0, term=term, instance=instance, epoch=epoch, rank=rank, verb="stop", stop=stop)


def key_of(report: ProcessReport) -> _Key:
    return report.instance, report.epoch, report.rank


def stray_events(worker_id: str, strays: Sequence[processes.Stray], actor: str = "") -> Iterable[NewEvent]:
    """One event for each process without a claim, up to a bound; then one for the rest."""
    for stray in strays[:STRAYS_NAMED]:
        yield NewEvent(
            "stray_process",
            f"a process of {stray.instance} runs at epoch {stray.epoch} without claims; it is stopped",
            (f"worker:{worker_id}", f"instance:{stray.instance}"),
            {"epoch": stray.epoch, "rank": stray.rank},
            actor,
        )
    if (rest := len(strays) - STRAYS_NAMED) > 0:
        message = f"{rest} more processes run without claims; they are stopped"
        yield NewEvent("stray_process", message, (f"worker:{worker_id}",), {"processes": rest}, actor)


def _events(batch: Sequence[_Unwritten], written: processes.Written) -> list[NewEvent]:
    """Events of strays that are new on their connections, and of memory that is held after an end."""
    strays_of = defaultdict(list)
    for stray in written.strays:
        strays_of[stray.worker_id].append(stray)
    events: list[NewEvent] = []
    for unwritten in batch:
        session = unwritten.session
        new = [s for s in strays_of[session.worker_id] if (s.instance, s.epoch, s.rank) not in session.strays]
        events += stray_events(session.worker_id, new, f"agent:{session.name}")
        events += _held_events(unwritten, written.changed)
    return events


def _held_events(unwritten: _Unwritten, changed: Collection[_Key]) -> Iterable[NewEvent]:
    """One event for each ended process whose memory the driver did not free."""
    session = unwritten.session
    for key, report in unwritten.reports.items():
        held = report.state == "exited" and f"{GPU_MEMORY_HELD}:" in report.message
        if held and key in changed and key not in session.memory_held:
            session.memory_held.add(key)
            yield NewEvent(
                GPU_MEMORY_HELD,
                f"{report.instance} has ended on {session.name}, but memory of its GPU is not back",
                (f"instance:{report.instance}", f"worker:{session.worker_id}"),
                {"epoch": report.epoch, "rank": report.rank, "agent": report.message},
                f"agent:{session.name}",
            )


def _reports(batch: Iterable[_Unwritten]) -> list[processes.SessionReport]:
    return [
        processes.SessionReport(p.session.worker_id, p.session.number, report, key_of(report) in p.session.unread)
        for p in batch
        for report in p.reports.values()
    ]


def stored(report: ProcessReport) -> ProcessReport:
    """The report with its message in stored form: cut to the end, where errors are, with lines of logs marked."""
    message = plain(report.message)
    if len(message) > MAX_TEXT:
        message = "..." + message[-MAX_TEXT:]
    line = _of_older_agent(report, message) if report.log_line is None else plain(report.log_line)[-MAX_TEXT:]
    marked = quote(message, line)
    return report if marked == report.message else replace(report, message=marked)


def _of_older_agent(report: ProcessReport, message: str) -> str:
    """The part of an older agent's message that may be a line of a log: the message of an end."""
    ended_by_itself = report.state == "exited" and report.reason in (None, "exit", "gone", "spawn_failed")
    return message if ended_by_itself and not message.startswith(KILLED_FOR_MEMORY) else ""


def _answers(batch: Iterable[_Unwritten]) -> list[commands.Answer]:
    return [
        commands.Answer(r.command_id, p.session.worker_id, r.outcome, r.code, r.message[:MAX_TEXT])
        for p in batch
        for r in p.results.values()
    ]
