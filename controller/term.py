"""Leads while this controller holds the lease: the loops and services of one term, and the hints that wake them."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import structlog

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.leader.analyses import Analyses
from controller.leader.housekeeping import History, Housekeeping, Sealing
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
from controller.runtime.lease import LEADER_ERRORS, term_transaction
from controller.runtime.loop import LoopSettings, ReconcileLoop, Reconciler
from controller.runtime.metrics import Metrics
from controller.settings import ControllerSettings
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.core.events import GONE, acting, parse_gone
from controller.store.deployments.failures import record_failure, record_quarantine
from controller.store.deployments.start_times import absent_s, leave_out

# Few workers and large batches. The next step takes all keys that arrive while a step runs, so under load the cost of a
# step is shared, and an idle cluster does not wait for batches to fill. The second worker runs while the first waits
# for a lock.
_INSTANCES: Final = LoopSettings(workers=2, batch_size=256)
# Its step is a narrow read, so it takes all keys together.
_CANCELLING: Final = LoopSettings(workers=1, batch_size=4096)
# One step at a time, since steps share the series of samples.
_POLICIES: Final = LoopSettings(workers=1, batch_size=256)
# A new deployment is about to be placed and started. Policies, whose windows are tens of seconds, wait for that.
_JUDGED_WITHIN_S: Final = 0.1
_ONE_AT_A_TIME: Final = LoopSettings(workers=1, batch_size=1, resync_s=20.0)

_ABSENCE_LIMIT_S: Final = 10.0

log = structlog.get_logger(__name__)

Services = dict[str, Callable[[], Coroutine[Any, Any, None]]]  # by name; each runs until cancelled


class Term:
    """The loops and services of one term."""

    def __init__(
        self,
        database: Database,
        term: int,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        healthy_for_s: Callable[[], float],
        *,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
        keys: SecretKeys = NO_KEYS,
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
    ) -> None:
        self._database = database
        self._number = term
        self._audit_every_s = settings.audit_every_s
        self._clock = clock
        self._metrics = metrics
        self._rng = random.Random()  # noqa: S311 - jitter only, no secret depends on it
        self._reported = False
        self._settled = False
        self._analyses = Analyses(
            clock=clock,
            metrics=metrics,
            hint=self._wake_deployment,
            on_start=self._recheck_analysis,
            loop_lag_s=loop_lag_s,
        )
        passes = PlacementPasses(clock=clock, metrics=metrics, reserve=settings.reserve, keys=keys)
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
                operators_may=settings.operators_may,
            ),
            _INSTANCES,
        )
        self._placement = self._loop(
            PlacementReconciler(
                database, term, settings.restarts, passes, self._wake_deployment, lambda: not self._settled
            ),
            _ONE_AT_A_TIME,
        )
        self._all_workers = WorkersReconciler(
            database, term, healthy_for_s=healthy_for_s, settings=settings.workers, reported=self._agents_reported
        )
        self._workers = self._loop(self._all_workers, _ONE_AT_A_TIME)
        self._adoption = self._loop(
            AdoptionReconciler(database, term, reported=lambda: self._reported, settled=self._settle), _ONE_AT_A_TIME
        )
        self._relocations = self._loop(
            RelocationsReconciler(database, term, at_once=settings.relocations_at_once), _ONE_AT_A_TIME
        )
        watch = PolicyWatch(database, metrics, sample_s=settings.sample_every_s, term=term)
        self._policies = self._loop(PoliciesReconciler(database, term, metrics, watch), _POLICIES)
        self._demand = ScalingWatch(database)
        self._scaling = self._loop(ScalingReconciler(database, term, self._demand), _POLICIES)
        self._services: Services = {
            "samples": lambda: watch.run(clock, self._policies.add),
            "demand": lambda: self._demand.run(clock, self._scaling.add),
            **_services(database, term, clock, settings, keys, redaction),
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
        await self._leave_out_absence()
        try:
            async with asyncio.TaskGroup() as group:
                for name, loop in loops.items():
                    group.create_task(loop.run(), name=name)
                for name, service in self._services.items():
                    group.create_task(service(), name=name)
        finally:
            await self._analyses.aclose()

    async def _leave_out_absence(self) -> None:
        """Excludes the time without a leader from instances' starts, before any loop moves an instance."""
        try:
            async with asyncio.timeout(_ABSENCE_LIMIT_S), term_transaction(self._database, self._number) as connection:
                if (seconds := await absent_s(connection, self._audit_every_s)) > 0:
                    await leave_out(connection, seconds)
        except LEADER_ERRORS as error:  # times of starts are then too long
            log.warning("time without a leader not left out of starts", error=str(error) or type(error).__name__)

    def hint(self, kind: str, id_: str | None) -> None:
        if kind == GONE and id_ is not None:
            self._end_analysis(id_)
            return
        if kind in ("deployment", "process", "*"):
            if id_ is None:
                self._cancelling.add_all()
                self._instances.add_all()
            else:
                # First, since a changed deployment's analysis may be obsolete.
                analyzing = self._analyses.running(id_)
                if analyzing and kind == "deployment":
                    self._recheck_analysis(id_)
                self._instances.add(id_, urgent=analyzing)
        if kind in ("deployment", "status", "scaling", "*"):
            self._judge(kind, id_)
        if kind in ("wake", "*"):
            self._demand.poke()
        for of, loop in (("relocation", self._relocations), ("found", self._adoption)):
            if kind in (of, "*"):
                loop.add(EVERYTHING)
        self._hint_placement(kind)

    def _hint_placement(self, kind: str) -> None:
        if kind in ("worker", "*"):  # a large fleet that returns sends many
            self._workers.add(EVERYTHING, after_s=self._all_workers.gather_s)
            self._wake_placement(after_s=self._all_workers.gather_s)
        elif kind == "secret":
            self._wake_placement()

    def _judge(self, kind: str, uid: str | None) -> None:
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
        """Ends the analysis of a deleted deployment without a read, since a deletion is never undone."""
        if (parsed := parse_gone(gone)) is not None:
            uid, deleted_at = parsed
            self._analyses.cancel(uid, committed_at=deleted_at)

    def _agents_reported(self) -> None:
        """Agents have reported their processes since the database last lost commits."""
        if not self._reported:
            self._reported = True
            self._adoption.add(EVERYTHING)

    def _settle(self) -> None:
        """All processes are in the ledger: instances may be placed, started and stopped."""
        if not self._settled:
            self._settled = True
            self._instances.add_all()
            self._wake_placement()

    def _recheck_analysis(self, uid: str) -> None:
        self._cancelling.add(uid, urgent=True)

    def _wake_deployment(self, uid: str) -> None:
        self._instances.add(uid)

    def _wake_placement(self, after_s: float = 0.0) -> None:
        self._placement.add(EVERYTHING, after_s=after_s)

    def _loop(self, reconciler: Reconciler[str], settings: LoopSettings) -> ReconcileLoop[str]:
        return ReconcileLoop(
            reconciler,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
            on_quarantine=partial(record_quarantine, self._database, reconciler.kind),
            on_terminal=partial(record_failure, self._database, reconciler.kind),
            settings=settings,
        )


def _services(
    database: Database,
    term: int,
    clock: Clock,
    settings: ControllerSettings,
    keys: SecretKeys,
    redaction: Callable[[], Redaction],
) -> Services:
    return {
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
            keys=keys,
        ).run,
        "sealing": Sealing(database, term, clock, keys).run,
        "history": History(
            database, term, clock, every_s=settings.rollup_every_s, keep_days=settings.keep_history_days
        ).run,
    }


class Leading:
    """Runs the current term, which `begin` makes by its number, and passes hints to it."""

    def __init__(self, begin: Callable[[int], Term]) -> None:
        self._begin = begin
        self._term: Term | None = None

    def hint(self, kind: str, id_: str | None) -> None:
        if self._term is not None:
            self._term.hint(kind, id_)

    async def lead(self, term: int) -> None:
        """Runs a term until cancelled."""
        log.info("leadership acquired", term=term)
        self._term = self._begin(term)
        try:
            with acting("leader"):
                await self._term.run()
        finally:
            self._term = None
            log.info("leadership lost", term=term)


class Resignation:
    """Ends a controller's leadership while it continues to serve."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()  # set it to resign
        self.done = asyncio.Event()  # this controller does not lead and will not lead again

    async def carry_out(self, leading: asyncio.Task[None]) -> None:
        """Waits for `requested`, then ends the task that holds the lease or campaigns for it."""
        await self.requested.wait()
        leading.cancel()
        await asyncio.wait({leading})
        self.done.set()
