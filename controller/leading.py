"""What only the leader runs: the reconcile loops of one term, and the house-keeping. Wires; decides nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from controller.leader.analyses import Analyses
from controller.leader.history import History
from controller.leader.housekeeping import Housekeeping
from controller.leader.placement_turn import PlacementTurn
from controller.leader.webhooks import Webhooks
from controller.reconcilers.cancelling import CancellingReconciler
from controller.reconcilers.instances import InstancesReconciler
from controller.reconcilers.placement import EVERYTHING, PlacementReconciler
from controller.reconcilers.policies import PoliciesReconciler, feed_samples
from controller.reconcilers.relocations import RelocationsReconciler
from controller.reconcilers.workers import WorkersReconciler
from controller.runtime.clock import Clock
from controller.runtime.loop import ReconcileLoop
from controller.runtime.metrics import Metrics
from controller.runtime.reconciler import LoopSettings, Reconciler
from controller.settings import ControllerSettings
from controller.store.core.database import Database
from controller.store.deployments.failures import record_failure, record_quarantine

log = structlog.get_logger(__name__)

# Few workers and large batches: what arrives while a step runs is taken together by the next one, so under load the
# cost of a step is shared, and on an idle cluster nobody waits to be gathered. The second worker is for the case that
# the first one waits for a lock.
_INSTANCES: Final = LoopSettings(workers=2, batch_size=256)
# Its step is one narrow read, so all that came together goes together.
_CANCELLING: Final = LoopSettings(workers=1, batch_size=4096)
# One step at a time: the series of samples are its own.
_POLICIES: Final = LoopSettings(workers=1, batch_size=256)
# What was just written is about to be placed and started. Policies, whose windows are tens of seconds, let that go by,
# and take together what follows it.
_JUDGED_WITHIN_S: Final = 0.1
_ONE_AT_A_TIME: Final = LoopSettings(workers=1, batch_size=1, resync_s=20.0)


class Leading:
    """Runs the loops of whatever term is ours, and passes hints to them.

    Args:
        database: where all is read and written.
        clock: time.
        metrics: what is counted.
        settings: back-off, limits of silence, periods.
        healthy_for_s: seconds for which the hub's writes have succeeded without a gap.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        healthy_for_s: Callable[[], float],
    ) -> None:
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._healthy_for_s = healthy_for_s
        self._reign: _Reign | None = None

    def hint(self, kind: str, id_: str | None) -> None:
        """Passes a wake-up on; a follower has nobody to wake."""
        if self._reign is not None:
            self._reign.hint(kind, id_)

    async def lead(self, term: int) -> None:
        """Runs everything that only a leader does, until cancelled."""
        log.info("leading", term=term)
        leader_term = _Reign(self._database, term, self._clock, self._metrics, self._settings, self._healthy_for_s)
        self._reign = leader_term
        try:
            await leader_term.run()
        finally:
            self._reign = None
            log.info("no longer leading", term=term)


class _Reign:
    """The loops of one term."""

    def __init__(
        self,
        database: Database,
        term: int,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        healthy_for_s: Callable[[], float],
    ) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._analyses = Analyses(clock=clock, metrics=metrics, hint=self._look_at, on_start=self._look_whether_needed)
        # Jitter only: no secret depends on it.
        rng = random.Random()  # noqa: S311 - see above

        def loop(reconciler: Reconciler[str], loop_settings: LoopSettings) -> ReconcileLoop[str]:
            return ReconcileLoop(
                reconciler,
                clock=clock,
                rng=rng,
                metrics=metrics,
                on_quarantine=self._quarantined(reconciler.kind),
                on_terminal=self._failed(reconciler.kind),
                settings=loop_settings,
            )

        placement_turn = PlacementTurn(clock=clock, metrics=metrics, reserve_after_s=settings.reserve_after_s)
        self._instances: ReconcileLoop[str] = loop(
            InstancesReconciler(
                database, term, self._analyses, settings.restarts, placement_turn, self._wake_placement
            ),
            _INSTANCES,
        )
        self._cancelling: ReconcileLoop[str] = loop(CancellingReconciler(database, self._analyses), _CANCELLING)
        self._placement: ReconcileLoop[str] = loop(
            PlacementReconciler(database, term, settings.restarts, placement_turn, self._look_at), _ONE_AT_A_TIME
        )
        self._workers: ReconcileLoop[str] = loop(
            WorkersReconciler(database, term=lambda: term, healthy_for_s=healthy_for_s, settings=settings.workers),
            _ONE_AT_A_TIME,
        )
        self._relocations: ReconcileLoop[str] = loop(
            RelocationsReconciler(database, term, at_once=settings.relocations_at_once), _ONE_AT_A_TIME
        )
        self._judging = PoliciesReconciler(database, term, metrics, sample_s=settings.sample_every_s)
        self._policies: ReconcileLoop[str] = loop(self._judging, _POLICIES)
        self._webhooks = Webhooks(database, term, clock)
        self._housekeeping = Housekeeping(
            database,
            term,
            clock,
            audit_every_s=settings.audit_every_s,
            keep_events_days=settings.keep_events_days,
            keep_actions_days=max(settings.keep_events_days, settings.keep_history_days),  # reports look as far back
        )
        self._history = History(
            database, term, clock, every_s=settings.rollup_every_s, keep_days=settings.keep_history_days
        )
        self._metrics = metrics

    async def run(self) -> None:
        """Runs until cancelled; every child process has ended when this returns."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._cancelling.run(), name="cancelling")
                group.create_task(self._instances.run(), name="instances")
                group.create_task(self._placement.run(), name="placement")
                group.create_task(self._workers.run(), name="workers")
                group.create_task(self._relocations.run(), name="relocations")
                group.create_task(self._policies.run(), name="policies")
                group.create_task(feed_samples(self._judging, self._clock, self._policies.add), name="samples")
                group.create_task(self._webhooks.run(), name="webhooks")
                group.create_task(self._housekeeping.run(), name="housekeeping")
                group.create_task(self._history.run(), name="history")
        finally:
            await self._analyses.aclose()

    def hint(self, kind: str, id_: str | None) -> None:
        """Adds the keys that a wake-up may concern."""
        if kind in ("deployment", "process", "*"):
            if id_ is None:
                self._cancelling.add_all()
                self._instances.add_all()
            else:
                # What computes for a deployment that changed must hear of it before anything else does.
                computing = self._analyses.running(id_)
                if computing and kind == "deployment":
                    self._look_whether_needed(id_)
                self._instances.add(id_, urgent=computing)
        if kind in ("deployment", "status", "*"):
            if id_ is None:
                self._policies.add_all()
            else:
                self._policies.add(id_, after_s=_JUDGED_WITHIN_S)
        if kind in ("relocation", "*"):
            self._relocations.add(EVERYTHING)
        if kind in ("worker", "*"):
            self._workers.add(EVERYTHING)
            self._wake_placement()

    def _look_whether_needed(self, uid: str) -> None:
        self._cancelling.add(uid, urgent=True)

    def _look_at(self, uid: str) -> None:
        self._instances.add(uid)

    def _wake_placement(self) -> None:
        self._placement.add(EVERYTHING)

    def _quarantined(self, kind: str) -> Callable[[str, str, int], Awaitable[None]]:
        async def record(key: str, error: str, attempts: int) -> None:
            await record_quarantine(self._database, kind, key, error, attempts)

        return record

    def _failed(self, kind: str) -> Callable[[str, str], Awaitable[None]]:
        async def record(key: str, error: str) -> None:
            await record_failure(self._database, kind, key, error)

        return record
