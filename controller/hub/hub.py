"""The registry of agents' connections, with writers of reports and the dispatch of commands. Decides nothing."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.decide.lost_history import ReportedTerm, proof_of
from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.hub.admission import Admission
from controller.hub.command_dispatch import CommandDispatcher, Secrets
from controller.hub.credential_rotation import POLL_S as ROTATION_POLL_S
from controller.hub.credential_rotation import CredentialRotation
from controller.hub.device_recovery import EVERY_S as RECOVERY_S
from controller.hub.device_recovery import recover_all
from controller.hub.dismissals import Dismissals
from controller.hub.handshake import HandshakeResult
from controller.hub.heartbeats import RETURNED_AFTER_S, Liveness
from controller.hub.join import JoinHandler
from controller.hub.lost_history import LostHistory
from controller.hub.message_handler import MessageHandler
from controller.hub.proxy_address import DEFAULT_TRUST, HostTrust
from controller.hub.reports import ReportWriter, key_of
from controller.hub.samples import SampleWriter
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.metrics import HubMetrics
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.telemetry.partitions import PartitionMaintenance, SampleRetention
from controller.store.workers.sessions import Identity
from schemas.process_figures import ProcessFigures
from schemas.wire import CONNECT_PATH, JOIN_PATH, SPOKEN, Hello, Protocols, ReportAck, Welcome

log = structlog.get_logger(__name__)

CLOSE_ALL_LIMIT_S: Final = 3.0
ORPHANS_RECHECK_S: Final = 5.0
_SHUTDOWN: Final = "the controller is shutting down"
_TAKEN_OVER: Final = "a newer connection of this worker has taken over"


class Hub:
    """Agents' connections. `images`: by engine, if they differ from the default images."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        instance_id: str,
        secrets: Secrets,
        images: Mapping[str, str] | None = None,
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
        sample_s: float,
        keep: SampleRetention,
        metrics: HubMetrics | None = None,
        spoken: Protocols = SPOKEN,
        trust: HostTrust = DEFAULT_TRUST,
        unreachable_after_s: float = math.inf,
        rotate_credentials_s: float = 30 * 86_400.0,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._join = JoinHandler(database, clock, keys)
        self._dispatcher = CommandDispatcher(
            database, clock, self._sessions, secrets, {} if images is None else images, redaction, keys
        )
        self._dismissals = Dismissals(database, clock, self._sessions)
        self._rotation = CredentialRotation(database, self._sessions, rotate_credentials_s, keys)
        self._rotate_every_s = min(ROTATION_POLL_S, rotate_credentials_s)
        self._lost_history = LostHistory(database, clock, lambda: self._open)
        self._reports = ReportWriter(database, clock, self._dispatcher.wake)
        self._partitions = PartitionMaintenance(database, keep)
        metrics = metrics or HubMetrics(CollectorRegistry())
        self._samples = SampleWriter(database, clock, self._partitions, metrics)
        self._sample_s = sample_s
        self._admission = Admission(
            database,
            clock,
            instance_id=instance_id,
            register=self._register,
            welcome=self._welcome,
            spoken=spoken,
            trust=trust,
            keys=keys,
        )
        self._liveness = Liveness(
            database,
            clock,
            superseded=self._superseded,
            cut_all=self._cut_all,
            # Somewhat sooner, because the leader uses the database's clock.
            returned_after_s=min(RETURNED_AFTER_S, 0.9 * unreachable_after_s),
        )
        self._messages = MessageHandler(
            database,
            clock,
            reports=self._reports,
            samples=self._samples,
            liveness=self._liveness,
            superseded=self._superseded,
            metrics=metrics,
            trusted=trust.labels,
        )
        self._log = log.bind(controller=instance_id)
        self._open: set[Session] = set()
        self._all_closed = asyncio.Event()
        self._closing = False

    def routes(self) -> list[web.RouteDef]:
        """The routes of the agents' protocol. Their handlers authenticate."""
        return [
            web.post(JOIN_PATH, self._join.handle),
            # Otherwise aiohttp adds HEAD, which is useless for a WebSocket.
            web.get(CONNECT_PATH, self._connect, allow_head=False),
        ]

    def wake(self, kind: str, id_: str | None) -> None:
        """Takes a hint.

        `command`: open commands for a worker (None: for any); `worker`: a changed row; `cut`: the database lost
        commits; `decided`: the leader has decided on this worker's orphans.
        """
        if kind in ("cut", "*"):
            self._lost_history.wake()
        match kind:
            case "command" | "*":
                self._dispatcher.wake(id_)
                if kind == "*":
                    self._dismissals.wake(None)
                    self._judge_orphans(None)
            case "decided":
                self._judge_orphans(id_)
            case "worker" if id_ is not None and id_ in self._sessions:
                self._liveness.recheck(self._sessions[id_])
                self._dismissals.wake(id_)
            case _:
                return

    def _judge_orphans(self, worker_id: str | None) -> None:
        """Judges the orphans of one worker; None: of all."""
        sessions = self._sessions.values() if worker_id is None else [self._sessions.get(worker_id)]
        for session in list(sessions):
            if session is not None and session.orphans:
                self._reports.judge_orphans(session)

    async def _recheck_orphans(self) -> None:
        while True:  # a hint can be lost, or come before its session is registered
            await self._clock.sleep(ORPHANS_RECHECK_S)
            self._judge_orphans(None)

    def connected(self) -> int:
        return len(self._sessions)

    def agents_processes(self) -> dict[tuple[str, ...], ProcessFigures]:
        """The latest figures of the connected agents' own processes, by worker."""
        figures = {session.name: session.process for session in self._sessions.values()}
        return {(name,): process for name, process in figures.items() if process is not None}

    def healthy_for_s(self) -> float:
        """Seconds for which heartbeats were written without a gap and no agent was refused for lack of capacity."""
        # A refused agent is silent through the controller's fault, so nothing may be concluded from that silence.
        return min(self._liveness.healthy_for_s(), self._admission.open_for_s)

    async def run(self) -> None:
        """Serves until cancelled, then closes all connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._liveness.run(), name="hub-liveness")
                recovery = self._every(RECOVERY_S, partial(recover_all, self._database), "devices not recovered")
                group.create_task(recovery, name="hub-device-recovery")
                group.create_task(self._reports.run(), name="hub-reports")
                group.create_task(self._partitions.run(), name="hub-partitions")
                group.create_task(self._samples.run(), name="hub-samples")
                group.create_task(self._dispatcher.run(), name="hub-dispatcher")
                group.create_task(self._dismissals.run(), name="hub-dismissals")
                rotation = self._every(self._rotate_every_s, self._rotation.rotate_due, "credentials not looked at")
                group.create_task(rotation, name="hub-credentials")
                group.create_task(self._lost_history.run(), name="hub-lost-history")
                group.create_task(self._recheck_orphans(), name="hub-orphans")
        finally:
            await self.close()

    async def _every(self, interval_s: float, work: Callable[[], Awaitable[None]], failure: str) -> None:
        """Does work at an interval until cancelled. `failure`: the log event of a database error."""
        while True:
            await self._clock.sleep(interval_s)
            try:
                await work()
            except DATABASE_ERRORS as error:
                log.warning(failure, error=str(error) or type(error).__name__)

    async def close(self) -> None:
        """Ends all connections and accepts no more; their workers do not count as disconnected. Idempotent.

        Call it before the server's own shutdown, which would wait for the connections.
        """
        self._closing = True
        self._admission.close()
        self._cut_all(_SHUTDOWN)
        # Each connection is owned by its handler, which ends once the socket is closed.
        try:
            async with asyncio.timeout(CLOSE_ALL_LIMIT_S):
                while self._open:
                    self._all_closed.clear()
                    await self._all_closed.wait()
        except TimeoutError:
            self._log.warning("agents' connections dropped", connections=len(self._open))
            for session in list(self._open):
                session.abort()

    def _cut_all(self, why: str) -> None:
        for session in list(self._open):
            session.cut(why, ours=True)

    def _superseded(self, session: Session) -> None:
        session.cut(f"{_TAKEN_OVER}, or the worker is deleted")

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        """Serves one agent, from the upgrade to the end of its connection."""
        answer, session = await self._admission.admit(request)
        if session is not None:
            with acting(f"agent:{session.name}"):
                await self._serve(session)
        return answer

    def _welcome(self, session: Session, identity: Identity, hello: Hello, accepted: HandshakeResult) -> None:
        """Queues the first messages: welcome, acknowledgement of reports, stops of strays. Commands follow."""
        key = identity.proof_key
        session.prove = lambda received: "" if key is None else proof_of(key, identity.id, received)
        session.welcome = Welcome(
            worker=identity.name,
            session=accepted.session,
            term=accepted.term,
            sample_s=self._sample_s,
            proxy_secret=accepted.proxy_secret,
            dismissed=dict(accepted.dismissed),
            proof=session.prove(ReportedTerm(accepted.term, accepted.session)),
        )
        session.send(session.welcome)
        if session.held_until is not None:
            return
        if hello.processes:
            session.send(ReportAck(seq=max(report.seq for report in hello.processes)))
        self._reports.stop_strays(session, accepted.strays, accepted.term)
        session.orphans = {key_of(report): report for report in accepted.orphans}
        self._liveness.read(session, hello.inventory.gpus)
        self._dispatcher.wake(identity.id)

    def _register(self, session: Session) -> str | None:
        """Makes this the worker's session. Returns the reason for a refusal: a newer session, or the hub closes."""
        older = self._sessions.get(session.worker_id)
        if self._closing:
            return _SHUTDOWN
        if older is not None and older.number > session.number:
            return _TAKEN_OVER
        if older is not None:
            older.cut(_TAKEN_OVER, ours=True)
        self._sessions[session.worker_id] = session
        self._open.add(session)
        self._liveness.opened(session)
        return None

    def _unregister(self, session: Session) -> None:
        if self._sessions.get(session.worker_id) is session:
            del self._sessions[session.worker_id]
        self._samples.closed(session)
        self._liveness.closed(session)
        self._open.discard(session)
        if not self._open:
            self._all_closed.set()
        self._log.info("agent disconnected", worker=session.name, session=session.number, clean=session.clean)

    async def _serve(self, session: Session) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(session.write_all(), name=f"agent-{session.name}-writer")
                try:
                    await self._messages.read_all(session)
                finally:
                    session.finish()
        except asyncio.CancelledError:
            # The agent has disconnected, or the server shuts down, which must not count against the agent.
            session.ours = session.ours or session.open
            raise
        finally:
            self._unregister(session)
