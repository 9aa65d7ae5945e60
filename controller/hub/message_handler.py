"""Handles an agent's messages, from the welcome to the end of the connection."""

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from controller.hub import devices, handshake
from controller.hub.agent_messages import MalformedMessageError
from controller.hub.conditions import record_disk
from controller.hub.heartbeats import Liveness
from controller.hub.reports import ReportWriter
from controller.hub.samples import SampleWriter
from controller.hub.session import Session
from controller.hub.worker_budget import CHANGE_S
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.metrics import HubMetrics
from controller.store.core.database import Database
from schemas.wire import (
    AgentMessage,
    CommandResult,
    Goodbye,
    Heartbeat,
    Hello,
    Inventory,
    InventoryChanged,
    ProcessReport,
    ReportedGpu,
    Samples,
)
from schemas.worker_labels import TRUSTED_LABELS

log = structlog.get_logger(__name__)

NO_DATABASE: Final = "the controller cannot reach its database; connect again"
_SHUTTING_DOWN: Final = "shutting_down"  # why an agent refuses a start
_BELIEVED_AGAIN: Final = "no other agent has connected with this identity for a while; connect again"
HELD_ELSEWHERE_RECHECK_S: Final = 60.0


class MessageHandler:
    """Passes agents' messages to their writers. `superseded` is called with sessions that are no longer the newest."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        reports: ReportWriter,
        samples: SampleWriter,
        liveness: Liveness,
        superseded: Callable[[Session], None],
        metrics: HubMetrics,
        trusted: Sequence[str] = TRUSTED_LABELS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._reports = reports
        self._samples = samples
        self._liveness = liveness
        self._superseded = superseded
        self._metrics = metrics
        self._trusted = trusted

    async def read_all(self, session: Session) -> None:
        while True:
            try:
                message = await session.receive()
                if message is None:
                    return
                self._liveness.heard(session)
                self._metrics.doubted(session.doubts.impossible, len(session.doubts.dropped))
                if session.held_until is None:
                    await self._handle(session, message)
                elif self._clock.monotonic() >= session.held_until:
                    session.cut(_BELIEVED_AGAIN, ours=True)
                elif isinstance(message, Goodbye):
                    session.clean = True
            except MalformedMessageError as error:
                await handshake.record_malformed(self._database, session.worker_id, session.name, error)
                session.cut(str(error))
                return
            except DATABASE_ERRORS as error:
                log.warning("inventory not written", worker=session.name, error=str(error) or type(error).__name__)
                session.cut(NO_DATABASE, ours=True)
                return

    async def _handle(self, session: Session, message: AgentMessage) -> None:
        match message:
            case ProcessReport():
                self._reports.report(session, message)
            case Samples():
                self._samples.take(session, message)
            case CommandResult():
                self._reports.result(session, message)
                if message.code == _SHUTTING_DOWN:  # an agent of an earlier version says goodbye only at the end
                    self._liveness.leaves(session)
            case Heartbeat(gpus=gpus, gpus_error=error):
                session.compare_clocks(self._clock.monotonic(), message.sent_s)
                self._liveness.read(session, gpus)
                session.process = message.process
                await record_disk(self._database, session, message.process)
                overdue = session.held_elsewhere and self._clock.monotonic() >= session.recheck_at
                if overdue or error != session.gpus_error or devices.properties_differ(session.gpus, gpus):
                    await self._write_change(session, gpus, error)
            case InventoryChanged(inventory=changed):
                await self._write_change(session, changed, changed.gpus_error)
            case Goodbye():
                self._liveness.leaves(session)
            case Hello():
                raise MalformedMessageError("hello: sent twice on one connection")

    async def _write_change(
        self, session: Session, report: Inventory | tuple[ReportedGpu, ...] | None, error: str
    ) -> None:
        session.budget.charge(CHANGE_S)
        if not await devices.write_device_change(self._database, session, report, error, trusted=self._trusted):
            self._superseded(session)
        session.recheck_at = self._clock.monotonic() + HELD_ELSEWHERE_RECHECK_S
