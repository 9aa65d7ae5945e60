"""What only the leader runs: the reconcile loops and services of one term. Composition only; decides nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from controller.domain.redaction import NOTHING_REDACTED, Redaction
from controller.leader.analyses import Analyses
from controller.leader.housekeeping import Housekeeping
from controller.leader.minute_rollups import History
from controller.leader.placement_passes import PlacementPasses
from controller.leader.policy_watch import PolicyWatch
from controller.leader.scaling_watch import ScalingWatch
from controller.leader.webhooks import Webhooks
from controller.reconcilers.adoption import AdoptionReconciler
from controller.reconcilers.cancelling import CancellingReconciler
from controller.reconcilers.instances import InstancesReconciler
from controller.reconcilers.placement import EVERYTHING, PlacementReconciler
from controller.reconcilers.policies import PoliciesReconciler
from controller.reconcilers.relocations import RelocationsReconciler
from controller.reconcilers.scaling import ScalingReconciler
from controller.reconcilers.workers import WorkersReconciler
from controller.runtime.clock import Clock
from controller.runtime.loop import ReconcileLoop
from controller.runtime.metrics import Metrics
from controller.runtime.reconciler import LoopSettings, Reconciler
from controller.settings import ControllerSettings
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.acting import acting
from controller.store.core.database import Database
from controller.store.core.notify import GONE, parse_gone
from controller.store.deployments.failures import record_failure, record_quarantine

log = structlog.get_logger(__name__)

# Few workers and large batches. What arrives while a step runs is taken together by the next one, so under load the
# cost of a step is shared, and an idle cluster does not wait for batches to fill. The second worker runs while the
# first one waits for a lock.
_INSTANCES: Final = LoopSettings(workers=2, batch_size=256)
# Its step is one narrow read, so all keys go together.
_CANCELLING: Final = LoopSettings(workers=1, batch_size=4096)
# One step at a time: the series of samples belong to it alone.
_POLICIES: Final = LoopSettings(workers=1, batch_size=256)
# A deployment that was just written is about to be placed and started. Policies, whose windows are tens of seconds,
# wait for that and take its consequences together.
_JUDGED_WITHIN_S: Final = 0.1
_ONE_AT_A_TIME: Final = LoopSettings(workers=1, batch_size=1, resync_s=20.0)


class Leading:
    """Runs the current term's loops and passes hints to them.

    Args:
        database: where everything is read and written.
        clock: time.
        metrics: what is counted.
        settings: backoff, limits of silence, periods.
        healthy_for_s: seconds for which the hub's writes have succeeded without a gap.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        healthy_for_s: Callable[[], float],
        *,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
        keys: SecretKeys = NO_KEYS,
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
    ) -> None:
        self._keys = keys
        self._redaction = redaction
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._healthy_for_s = healthy_for_s
        self._loop_lag_s = loop_lag_s
        self._term: _Term | None = None

    def hint(self, kind: str, id_: str | None) -> None:
        """Passes a hint to the term's loops; a follower has none."""
        if self._term is not None:
            self._term.hint(kind, id_)

    async def lead(self, term: int) -> None:
        """Runs everything that only a leader runs, until cancelled."""
        log.info("leadership acquired", term=term)
        self._term = _Term(
            self._database,
            term,
            self._clock,
            self._metrics,
            self._settings,
            healthy_for_s=self._healthy_for_s,
            loop_lag_s=self._loop_lag_s,
            keys=self._keys,
            redaction=self._redaction,
        )
        try:
            with acting("leader"):
                await self._term.run()
        finally:
            self._term = None
            log.info("leadership lost", term=term)


class _Term:
    """The loops and services of one term."""

    def __init__(
        self,
        database: Database,
        term: int,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        *,
        healthy_for_s: Callable[[], float],
        loop_lag_s: Callable[[], float],
        keys: SecretKeys,
        redaction: Callable[[], Redaction],
    ) -> None:
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._rng = random.Random()  # noqa: S311 - jitter only, no secret depends on it
        self._told = False
        self._settled = False
        self._analyses = Analyses(
            clock=clock,
            metrics=metrics,
            hint=self._wake_deployment,
            on_start=self._recheck_analysis,
            loop_lag_s=loop_lag_s,
        )
        passes = PlacementPasses(clock=clock, metrics=metrics, reserve=settings.reserve)
        self._cancelling = self._loop(CancellingReconciler(database, self._analyses), _CANCELLING)
        self._instances = self._loop(
            InstancesReconciler(
                database,
                term,
                self._analyses,
                settings.restarts,
                passes,
                self._wake_placement,
                metrics,
                held=lambda: not self._settled,
            ),
            _INSTANCES,
        )
        self._placement = self._loop(
            PlacementReconciler(
                database, term, settings.restarts, passes, self._wake_deployment, lambda: not self._settled
            ),
            _ONE_AT_A_TIME,
        )
        self._workers = self._loop(
            WorkersReconciler(
                database,
                term,
                healthy_for_s=healthy_for_s,
                settings=settings.workers,
                told=self._agents_told,
            ),
            _ONE_AT_A_TIME,
        )
        self._adoption = self._loop(
            AdoptionReconciler(database, term, told=lambda: self._told, settled=self._settle), _ONE_AT_A_TIME
        )
        self._relocations = self._loop(
            RelocationsReconciler(database, term, at_once=settings.relocations_at_once), _ONE_AT_A_TIME
        )
        watch = PolicyWatch(database, metrics, sample_s=settings.sample_every_s)
        self._policies = self._loop(PoliciesReconciler(database, term, metrics, watch), _POLICIES)
        self._demand = ScalingWatch(database)
        self._scaling = self._loop(ScalingReconciler(database, term, self._demand), _POLICIES)
        self._services: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "samples": lambda: watch.run(clock, self._policies.add),
            "demand": lambda: self._demand.run(clock, self._scaling.add),
            "webhooks": Webhooks(
                database,
                term,
                clock,
                quote_logs=settings.viewers_read_logs,
                keys=keys,
                may_reach=settings.webhooks_may_reach,
                redaction=redaction,
            ).run,
            "housekeeping": Housekeeping(
                database,
                term,
                clock,
                audit_every_s=settings.audit_every_s,
                keep_events_days=settings.keep_events_days,
                keep_audit_log_days=settings.keep_audit_log_days,
                # Reports reach as far back as the history.
                keep_actions_days=max(settings.keep_events_days, settings.keep_history_days),
            ).run,
            "history": History(
                database, term, clock, every_s=settings.rollup_every_s, keep_days=settings.keep_history_days
            ).run,
        }

    async def run(self) -> None:
        """Runs until cancelled; every child process has ended when this returns."""
        loops = {
            "cancelling": self._cancelling,
            "instances": self._instances,
            "placement": self._placement,
            "workers": self._workers,
            "adoption": self._adoption,
            "relocations": self._relocations,
            "policies": self._policies,
            "scaling": self._scaling,
        }
        try:
            async with asyncio.TaskGroup() as group:
                for name, loop in loops.items():
                    group.create_task(loop.run(), name=name)
                for name, service in self._services.items():
                    group.create_task(service(), name=name)
        finally:
            await self._analyses.aclose()

    def hint(self, kind: str, id_: str | None) -> None:
        """Adds the keys that a hint may concern."""
        if kind == GONE and id_ is not None:
            self._end_analysis(id_)
            return
        if kind in ("deployment", "process", "*"):
            if id_ is None:
                self._cancelling.add_all()
                self._instances.add_all()
            else:
                # A changed deployment's analysis may have to be cancelled: that comes before everything else.
                analyzing = self._analyses.running(id_)
                if analyzing and kind == "deployment":
                    self._recheck_analysis(id_)
                self._instances.add(id_, urgent=analyzing)
        if kind in ("deployment", "status", "scaling", "*"):
            self._judge(kind, id_)
        if kind in ("wake", "*"):
            self._demand.poke()
        if kind in ("relocation", "*"):
            self._relocations.add(EVERYTHING)
        if kind in ("found", "*"):
            self._adoption.add(EVERYTHING)
        if kind in ("worker", "*"):
            self._workers.add(EVERYTHING)
            self._wake_placement()

    def _judge(self, kind: str, uid: str | None) -> None:
        """Policies and the autoscaler look at it soon; the autoscaler at those alone whose replicas follow requests."""
        if uid is None:
            self._policies.add_all()
            self._scaling.add_all()
        elif kind == "scaling":
            self._scaling.add(uid)
        else:
            self._policies.add(uid, after_s=_JUDGED_WITHIN_S)
            if self._demand.watches(uid):
                self._scaling.add(uid, after_s=_JUDGED_WITHIN_S)

    def _end_analysis(self, gone: str) -> None:
        """Ends the analysis of a deployment that is deleted for certain: nothing has to be read first."""
        if (parsed := parse_gone(gone)) is not None:
            uid, deleted_at = parsed
            self._analyses.cancel(uid, committed_at=deleted_at)

    def _agents_told(self) -> None:
        """Agents have told what runs since the database last lost commits, if it ever did."""
        if not self._told:
            self._told = True
            self._adoption.add(EVERYTHING)

    def _settle(self) -> None:
        """What runs is in the ledger: instances may be placed, started and stopped."""
        if not self._settled:
            self._settled = True
            self._instances.add_all()
            self._wake_placement()

    def _recheck_analysis(self, uid: str) -> None:
        self._cancelling.add(uid, urgent=True)

    def _wake_deployment(self, uid: str) -> None:
        self._instances.add(uid)

    def _wake_placement(self) -> None:
        self._placement.add(EVERYTHING)

    def _loop(self, reconciler: Reconciler[str], settings: LoopSettings) -> ReconcileLoop[str]:
        return ReconcileLoop(
            reconciler,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
            on_quarantine=self._record_quarantine(reconciler.kind),
            on_terminal=self._record_failure(reconciler.kind),
            settings=settings,
        )

    def _record_quarantine(self, kind: str) -> Callable[[str, str, int], Awaitable[None]]:
        async def record(key: str, error: str, attempts: int) -> None:
            await record_quarantine(self._database, kind, key, error, attempts)

        return record

    def _record_failure(self, kind: str) -> Callable[[str, str], Awaitable[None]]:
        async def record(key: str, error: str) -> None:
            await record_failure(self._database, kind, key, error)

        return record
