"""Controllers of the ledger machine: real reconcilers, lease and hub, stepped and killed by hand."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from controller.domain.workers import WorkerSettings
from controller.hub import handshake
from controller.hub.command_dispatch import CommandDispatcher
from controller.hub.device_recovery import recover
from controller.hub.heartbeats import Liveness
from controller.hub.reports import BATCH, ReportWriter
from controller.hub.session import Session
from controller.leader.scaling_watch import ScalingWatch
from controller.reconcilers.placement import EVERYTHING
from controller.reconcilers.relocations import ALL as ALL_RELOCATIONS
from controller.reconcilers.relocations import RelocationsReconciler
from controller.reconcilers.scaling import ScalingReconciler
from controller.reconcilers.workers import ALL, WorkersReconciler
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import Lease
from controller.store.workers.sessions import Identity
from machine.faults import StruckDatabase
from machine.hosts import Host, Link
from schemas.wire import CommandResult, Hello, ProcessReport, ReportAck, Welcome
from support.leading.leader_term import LeaderTerm

# Two of three hosts may fall silent at once without the breaker holding everything back.
WORKERS = WorkerSettings(breaker_least=3)
_A_DAY_S = 86_400.0
RELOCATIONS_AT_ONCE = 1  # of the two that may be requested


class HandClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.time_s = 1_000.0

    def monotonic(self) -> float:
        return self.time_s

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nothing in this machine may wait, not even {seconds} s")


class Term:
    """One term: instances, placement, workers, relocations and scaling, as `term.py` composes them."""

    def __init__(self, database: StruckDatabase, number: int, clock: HandClock) -> None:
        self.number = number
        self._steps = LeaderTerm(database, number)
        self._workers = WorkersReconciler(database, number, healthy_for_s=lambda: _A_DAY_S, settings=WORKERS)
        self._relocations = RelocationsReconciler(database, number, at_once=RELOCATIONS_AT_ONCE)
        self.watch = ScalingWatch(database, monotonic=clock.monotonic)
        self._scaling = ScalingReconciler(database, number, self.watch)

    async def step_instances(self) -> None:
        keys = sorted(await self._steps.instances.list_keys())
        await self._steps.instances.step(keys)

    async def step_placement(self) -> None:
        """Does nothing while another step of this term holds the inventory; the real one would wait."""
        if self._steps.passes._lock.locked():
            return
        await self._steps.placement.step([EVERYTHING])

    async def step_workers(self) -> None:
        await self._workers.step([ALL])

    async def step_relocations(self) -> None:
        await self._relocations.step([ALL_RELOCATIONS])

    async def step_scaling(self) -> None:
        keys = sorted(await self._scaling.list_keys())
        if keys:
            await self._scaling.step(keys)

    async def step(self) -> None:
        await self.step_workers()
        await self.step_scaling()
        await self.step_relocations()
        await self.step_instances()
        await self.step_placement()

    async def aclose(self) -> None:
        await self._steps.aclose()


class Controller:
    """One controller's process: a hub, and a term while it leads."""

    def __init__(self, name: str, database: StruckDatabase, clock: HandClock, tally: Counter[str]) -> None:
        self.name = name
        self.term: Term | None = None
        self._database = database
        self._clock = clock
        self._tally = tally
        self.restart()

    def restart(self) -> None:
        """kill -9: its memory is lost."""
        self.sessions: dict[str, Session] = {}
        self.links: list[Link] = []
        self.reports = ReportWriter(self._database, self._clock, lambda _worker: None)
        self.dispatcher = CommandDispatcher(self._database, self._clock, self.sessions, _no_secrets, {})
        self.liveness = Liveness(
            self._database, self._clock, superseded=lambda s: s.cut("taken over"), cut_all=lambda _why: None
        )

    async def acquire_lease(self) -> Term | None:
        """Acquires the lease by the product's own statements, with its holder silent. None: another was quicker."""
        async with self._database.connection() as connection:
            await connection.raw.execute("update lease set renewed_at = '-infinity'")
        lease = Lease(self._database.listen_connection, f"{self.name}-{id(self)}", self._clock)
        try:
            term = await lease._try_acquire()
        finally:
            lease._drop()
        return Term(self._database, term, self._clock) if term is not None else None

    async def greet(self, host: Host, identity: Identity, hello: Hello) -> Link | None:
        """The hub's handshake. None where a newer connection exists already, and where the hello is held.

        A held one takes over too, but is not believed until it connects again.
        """
        greeted = await handshake.accept(self._database, identity, hello, "127.0.0.1")
        session = Session(
            None,  # type: ignore[arg-type]  # nothing is written to a socket: its queue is read
            None,
            None,  # type: ignore[arg-type]  # as above
            worker_id=identity.id,
            name=identity.name,
            number=greeted.session,
            since=greeted.at,
            boot_id=hello.boot_id,
            gpus=hello.inventory.gpus,
        )
        older = self.sessions.get(identity.id)
        if older is not None and older.number > session.number:
            return None
        if older is not None:
            older.cut("a newer connection of this worker has taken over", ours=True)
            self._close(older)
        if greeted.held_for_s:
            self.sessions.pop(identity.id, None)
            return None
        self.sessions[identity.id] = session
        self.liveness.opened(session)
        session.send(Welcome(worker=host.name, session=greeted.session, term=greeted.term, proxy_secret="s"))
        if hello.processes:
            session.send(ReportAck(seq=max(report.seq for report in hello.processes)))
        self.reports.stop_strays(session, greeted.strays, greeted.term)
        link = Link(session, self)
        self.links.append(link)
        return link

    def hear(self, link: Link, messages: Iterable[ProcessReport | CommandResult]) -> None:
        """Receives messages of an agent; `write` writes them."""
        for message in messages:
            self.liveness.heard(link.session)
            if isinstance(message, CommandResult):
                self.reports.result(link.session, message)
            else:
                self.reports.report(link.session, message)

    async def write(self) -> None:
        """One round of the reports, as its own loop would make it."""
        batch = self.reports.queue.take(BATCH)
        if not batch:
            return
        try:
            await self.reports._write(batch)
        except DATABASE_ERRORS:
            self.reports.queue.put_back(batch)
            raise

    async def deliver(self) -> None:
        """One round of dispatch to all connected agents."""
        open_ = [s for s in self.sessions.values() if s._ending is None]
        if open_:
            await self.dispatcher._dispatch(open_)

    async def flush(self, heard: Iterable[Session]) -> None:
        """One round of heartbeats; `heard` have just sent one."""
        for session in heard:
            self.liveness.heard(session)
        await self.liveness._flush_liveness(self._database)
        await self.liveness._flush_readings()
        await recover(self._database)

    def hang_up(self, link: Link) -> None:
        """The hub notices that a connection has ended."""
        link.hung_up = True
        if link in self.links:
            self.links.remove(link)
            self._close(link.session)

    def _close(self, session: Session) -> None:
        if self.sessions.get(session.worker_id) is session:
            del self.sessions[session.worker_id]
        self.liveness.closed(session)


async def _no_secrets(_names: Any) -> dict[str, str]:
    return {}
