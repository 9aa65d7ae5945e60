"""Workers' phases: observe → decide → apply. One key for all, since the breaker looks at all of them at once."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from controller.decide.worker_phases import decide
from controller.domain.events import NewEvent
from controller.domain.phases import WorkerPhase
from controller.domain.workers import WorkerChange, WorkerSettings, WorkersPlan
from controller.runtime.clock import ClockJumpWatch
from controller.runtime.lease import check_term
from controller.runtime.outcome import Done, Outcome, Requeue, StaleError
from controller.store.core.database import Database
from controller.store.core.errors import LostGuardError
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.workers import phases

ALL: Final = "all"
_MAX_HEALTHY_S: Final = 86_400.0  # beyond any limit on silence, and far inside what a date can hold


class WorkersReconciler:
    """Writes workers' phases. All times are the database's, so no clock of ours can declare anybody dead.

    Args:
        database: where to read and write.
        term: the term that we lead; None while we do not.
        healthy_for_s: seconds for which what the hub hears has reached the database without a gap.
        settings: limits.
        monotonic: seconds that never go backwards, to notice by that the database's clock was set.
    """

    kind = "worker"

    def __init__(
        self,
        database: Database,
        *,
        term: Callable[[], int | None],
        healthy_for_s: Callable[[], float],
        settings: WorkerSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._leaps = ClockJumpWatch(monotonic)
        self._term = term
        self._healthy_for_s = healthy_for_s
        self._settings = settings or WorkerSettings()

    async def list_keys(self) -> Collection[str]:
        """The one key."""
        return [ALL]

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Brings all workers' phases in line with what is heard of them.

        Raises:
            StaleError: another term leads, or a worker changed meanwhile; nothing was written.
        """
        term = self._term()
        if term is None:
            return dict.fromkeys(keys, Done())
        healthy_s = self._healthy_for_s()
        async with self._database.snapshot() as connection:
            snapshot = await phases.read_workers(connection)
        if snapshot.term != term:
            raise StaleError(f"term {term} is over, term {snapshot.term} leads")
        # After a leap of the clock everybody's last word seems hours old, or still to come: silence counts from now.
        counted_s = min(healthy_s, self._leaps.steady_for_s(snapshot.now), _MAX_HEALTHY_S)
        plan = decide(snapshot, snapshot.now - timedelta(seconds=counted_s), self._settings)
        if plan.changes:
            await self._apply(plan, term)
        again: Outcome = Done() if plan.again_s is None else Requeue(plan.again_s)
        return dict.fromkeys(keys, again)

    async def _apply(self, plan: WorkersPlan, term: int) -> None:
        moved = [change.id for change in plan.changes if change.new is not change.old]
        async with self._database.transaction() as connection:
            await check_term(connection, term)
            try:
                await phases.write_phases(connection, plan.changes)
            except LostGuardError as lost:
                raise StaleError(str(lost)) from lost
            await write_events(connection, _events(plan))
            await notify(connection, "worker", [change.id for change in plan.changes])
            await notify(connection, "deployment", await phases.deployments_on(connection, moved))


def _events(plan: WorkersPlan) -> Iterable[NewEvent]:
    if plan.breaker_open != plan.breaker_was_open:
        objects = tuple(f"worker:{change.id}" for change in plan.changes)
        if plan.breaker_open:
            message = (
                "too many workers fell silent at once, which looks like a fault on the controller's side: nothing is "
                "replaced until fewer than a third are silent, or until those that are dead are deleted with "
                "gpuward delete worker NAME --confirm-dead"
            )
            yield NewEvent("breaker_opened", message, objects)
        else:
            yield NewEvent("breaker_closed", "few enough workers are silent; lost ones are replaced again", objects)
    for change in plan.changes:
        if change.new is not change.old:
            yield NewEvent(f"worker_{change.new}", _sentence(change), (f"worker:{change.id}",), change.evidence)


def _sentence(change: WorkerChange) -> str:
    match change.new:
        case WorkerPhase.READY:
            return f"worker {change.name} is ready"
        case WorkerPhase.UNREACHABLE:
            return f"worker {change.name} is unreachable: {change.reason}"
        case WorkerPhase.LOST:
            fence = f" by {change.fence_until:%Y-%m-%d %H:%M:%S} UTC" if change.fence_until else " once it returns"
            return f"worker {change.name} is lost: {change.reason}; what it held is free{fence}"
        case WorkerPhase.JOINING:
            return f"worker {change.name} is joining"
