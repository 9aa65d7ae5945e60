"""Takes agents' process reports and answers, and writes what has come together in one transaction."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.hub.validate import MAX_PROCESSES, MAX_TEXT
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import read_term
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.deployments import commands, processes
from schemas.wire import Command, CommandResult, ProcessReport, ReportAck, StopOrder

log = structlog.get_logger(__name__)

BATCH: Final = 1_000
WRITE_LIMIT_S: Final = 20.0
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
STRAY_DRAIN_S: Final = 10.0
STRAY_RESEND_S: Final = 5.0

_Key = tuple[str, int, int]


@dataclass(slots=True)
class _Pending:
    """What one connection has sent and is not written yet. Of one process the newest report is enough."""

    session: Session
    reports: dict[_Key, ProcessReport] = field(default_factory=dict)
    results: dict[int, CommandResult] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reports) + len(self.results)


class ReportWriter:
    """One writer for all connections.

    Args:
        database: where to write.
        clock: time.
        woken: called with the worker whose answers made room for more orders.
    """

    def __init__(self, database: Database, clock: Clock, woken: Callable[[str], None]) -> None:
        self._database = database
        self._clock = clock
        self._woken = woken
        self._pending: dict[Session, _Pending] = {}
        self._more = asyncio.Event()

    def report(self, session: Session, report: ProcessReport) -> None:
        """Takes a report; it is acknowledged to the agent once it is durable."""
        pending = self._of(session)
        key = (report.instance, report.epoch, report.rank)
        known = pending.reports.get(key)
        if known is None or report.seq > known.seq:
            pending.reports[key] = report
        self._added(pending)

    def result(self, session: Session, result: CommandResult) -> None:
        """Takes an answer to an order."""
        session.unanswered.pop(result.command_id, None)
        if result.command_id > 0:  # 0 is the stop of a stray, which stands in no row
            pending = self._of(session)
            pending.results[result.command_id] = result
            self._added(pending)

    async def run(self) -> None:
        """Writes until cancelled."""
        failures = 0
        while True:
            await self._more.wait()
            # After a failure one connection at a time: if one of them is at fault, the others are not held up by it.
            batch = self._take(1 if failures else BATCH)
            try:
                async with asyncio.timeout(WRITE_LIMIT_S):
                    await self._write(batch)
                failures = 0
            except DATABASE_ERRORS as error:
                self._put_back(batch)
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                log.warning("agents' reports not written", error=str(error), attempt=failures, retry_s=wait_s)
                await self._clock.sleep(wait_s)

    def _of(self, session: Session) -> _Pending:
        return self._pending.setdefault(session, _Pending(session))

    def _added(self, pending: _Pending) -> None:
        if len(pending) > MAX_PROCESSES:
            # Dropped, not kept: a new hello brings the whole picture.
            del self._pending[pending.session]
            pending.session.cut("more reports are waiting than can be kept; report afresh")
        self._more.set()

    def _take(self, limit: int) -> list[_Pending]:
        """Whole connections' worth of what waits, about `limit` items."""
        batch: list[_Pending] = []
        size = 0
        while self._pending and size < limit:
            session = next(iter(self._pending))
            batch.append(self._pending.pop(session))
            size += len(batch[-1])
        if not self._pending:
            self._more.clear()
        return batch

    def _put_back(self, batch: Iterable[_Pending]) -> None:
        """Keeps what was not written, under what has come since."""
        for old in batch:
            newer = self._pending.get(old.session)
            if newer is not None:
                old.reports.update(newer.reports)
                old.results.update(newer.results)
            self._pending[old.session] = old
        self._more.set()

    async def _write(self, batch: list[_Pending]) -> None:
        async with self._database.transaction() as connection:
            held = await processes.lock_sessions(connection, [(p.session.worker_id, p.session.number) for p in batch])
            current = [p for p in batch if (p.session.worker_id, p.session.number) in held]
            # In this order: whoever removes an instance holds its row and waits for its orders, never the other way.
            written = await processes.write_reports(connection, _reports(current))
            answered = await commands.write_answers(connection, _answers(current))
            await write_events(connection, _stray_events(current, written.strays))
            term = await read_term(connection)
            await notify(connection, "process", answered | written.deployments)
        self._after(batch, held, written.strays, term)

    def _after(
        self, batch: list[_Pending], held: set[tuple[str, int]], strays: list[processes.Stray], term: int
    ) -> None:
        """What the commit allows: acknowledgements, stops of strays, more orders."""
        strays_of = defaultdict(list)
        for stray in strays:
            strays_of[stray.worker_id].append(stray)
        for pending in batch:
            session = pending.session
            if (session.worker_id, session.number) not in held:
                session.cut("a newer connection of this worker has taken over")
                continue
            for key, report in pending.reports.items():
                if report.state == "exited":
                    session.strays.pop(key, None)
            self.stop_strays(session, strays_of[session.worker_id], term)
            if pending.reports:
                session.send(ReportAck(seq=max(report.seq for report in pending.reports.values())))
            if pending.results:
                self._woken(session.worker_id)

    def stop_strays(self, session: Session, strays: Iterable[processes.Stray], term: int) -> None:
        """Has the agent stop what nobody owns, and remembers to say so again until it is gone."""
        now = self._clock.monotonic()
        for stray in strays:
            key = (stray.instance, stray.epoch, stray.rank)
            if now - session.strays.get(key, -STRAY_RESEND_S) >= STRAY_RESEND_S:
                session.strays[key] = now
                session.send(stop_stray_command(stray.instance, stray.epoch, stray.rank, term))


def stop_stray_command(instance: str, epoch: int, rank: int, term: int) -> Command:
    """An order that stands in no row: its id is 0, and its answer is not kept."""
    stop = StopOrder(drain_time_s=STRAY_DRAIN_S, reason="nothing is claimed for it")
    return Command(command_id=0, term=term, instance=instance, epoch=epoch, rank=rank, verb="stop", stop=stop)


def stray_event(worker_id: str, stray: processes.Stray) -> NewEvent:
    """The fact that something ran unowned."""
    return NewEvent(
        "stray_process",
        f"a process of {stray.instance} runs at epoch {stray.epoch}, for which nothing is claimed; it is stopped",
        (f"worker:{worker_id}", f"instance:{stray.instance}"),
        {"epoch": stray.epoch, "rank": stray.rank},
    )


def _stray_events(batch: Iterable[_Pending], strays: Iterable[processes.Stray]) -> list[NewEvent]:
    """One for each stray that the connection does not know of yet."""
    known = {(p.session.worker_id, *key) for p in batch for key in p.session.strays}
    return [stray_event(s.worker_id, s) for s in strays if (s.worker_id, s.instance, s.epoch, s.rank) not in known]


def _reports(batch: Iterable[_Pending]) -> list[processes.SessionReport]:
    return [
        processes.SessionReport(p.session.worker_id, p.session.number, truncated(report))
        for p in batch
        for report in p.reports.values()
    ]


def truncated(report: ProcessReport) -> ProcessReport:
    """The report with no more of its message than is kept: the end, where errors stand."""
    if len(report.message) <= MAX_TEXT:
        return report
    return report.model_copy(update={"message": "..." + report.message[-MAX_TEXT:]})


def _answers(batch: Iterable[_Pending]) -> list[commands.Answer]:
    return [
        commands.Answer(r.command_id, p.session.worker_id, r.outcome, r.code, r.message[:MAX_TEXT])
        for p in batch
        for r in p.results.values()
    ]
