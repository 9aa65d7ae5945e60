"""Reports each model's load to the leader once a second, and models that shall wake at once."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from controller.live.demand import WAKE_S, DemandReports, ReportAnswer
from controller.live.endpoints import DATABASE_ERRORS
from gateway.queueing.demand import Demand
from gateway.queueing.queues import Queues
from gateway.reporting.revision_outcomes import RevisionOutcomes
from gateway.routing.routing_table import RoutingTable

log = structlog.get_logger(__name__)

REPORT_S: Final = 1.0
_LIMIT_S: Final = 5.0
_GATHER_S: Final = 0.02  # requests that come together wake a model together
_AGAIN_S: Final = WAKE_S / 3


class Reporter:
    """The task that reports. After the database was away, it reports everything again.

    `answered` is called with each answer; `task` runs from `start` and ends only by a defect.
    """

    def __init__(
        self,
        reports: DemandReports,
        demand: Demand,
        queues: Queues,
        clock: Callable[[], float],
        outcomes: RevisionOutcomes,
        table: RoutingTable,
        answered: Callable[[ReportAnswer], None] = lambda _: None,
    ) -> None:
        self._reports = reports
        self._demand = demand
        self._queues = queues
        self._clock = clock
        self._outcomes = outcomes
        self._table = table
        self._answered = answered
        self._answered_since: float | None = None  # without a gap
        self._poked = asyncio.Event()
        self._woken: dict[str, float] = {}  # when a deployment was last requested to wake
        self._unwanted: set[str] = set()  # deployments whose wakes are to be withdrawn
        self._failing = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run(), name="demand-reports")

    def in_touch_s(self) -> float:
        """For how long the database has taken each report, in seconds."""
        return 0.0 if self._answered_since is None else self._clock() - self._answered_since

    def poke(self) -> None:
        """Reports now: a model shall wake, or need no longer."""
        self._poked.set()

    async def stop(self) -> None:
        """Ends the task, and reports that this gateway is gone."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=_LIMIT_S)
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._reports.leave()
        except DATABASE_ERRORS as error:
            log.warning("gateway could not sign off", error=str(error) or type(error).__name__)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LIMIT_S):
                    await self._report()
                if self._answered_since is None:
                    self._answered_since = self._clock()
                if self._failing:
                    log.info("demand is reported again")
                self._failing = False
            except DATABASE_ERRORS as error:
                if not self._failing:
                    log.warning("demand could not be reported", error=str(error) or type(error).__name__)
                self._failing = True
                self._answered_since = None
                self._demand.everything_again()
                self._outcomes.everything_again()
                self._woken.clear()
            await self._until_due()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(REPORT_S):
                await self._poked.wait()
        except TimeoutError:
            return
        self._poked.clear()
        await asyncio.sleep(_GATHER_S)

    async def _report(self) -> None:
        counts = self._outcomes.report(self._table.rollouts())
        answer = await self._reports.report(self._demand.report(self._clock(), self._table.at_replicas()), counts)
        if answer.is_new:
            self._demand.everything_again()
            self._outcomes.everything_again()
        self._answered(answer)
        now, wakes = self._clock(), self._queues.wakes()
        self._unwanted = (self._unwanted | self._queues.take_withdrawn()) - wakes.keys()
        for uid in tuple(self._unwanted):
            self._woken.pop(uid, None)
            await self._reports.withdraw(uid)
            self._unwanted.discard(uid)
        due = {u: r for u, r in wakes.items() if now - self._woken.get(u, float("-inf")) >= _AGAIN_S}
        for uid, request_id in (self._queues.take_refused() | due).items():
            await self._reports.wake(uid, request_id)
            self._woken[uid] = now
        self._woken = {uid: at for uid, at in self._woken.items() if uid in wakes}
