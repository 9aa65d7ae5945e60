"""Workers' phases: observe → decide → apply. A single key for all workers, since the breaker counts all of them."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from controller.decide.worker_phases import decide
from controller.domain.effects import StaleError
from controller.domain.events import NewEvent
from controller.domain.phases import WorkerPhase
from controller.domain.workers import WorkerChange, WorkerEffects, WorkerSettings
from controller.runtime.clock import JUMP_S
from controller.runtime.lease import term_transaction
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.workers import phases

ALL: Final = "all"
_GATHER_S: Final = 2e-4  # per worker that a step reads
_MOST_GATHER_S: Final = 1.0
_MAX_HEALTHY_S: Final = 86_400.0  # beyond any limit on silence, and far inside what a date can hold


class WorkersReconciler:
    """Writes workers' phases. All times are the database's, so the controller's clock cannot make a worker lost.

    Args:
        healthy_for_s: seconds for which the hub has written all heartbeats and accepted all agents.
        monotonic: seconds that never go backwards; they reveal that the database's clock was set.
        reported: called by each step, once agents have reported their processes since the last loss of commits.
    """

    kind = "worker"

    def __init__(
        self,
        database: Database,
        term: int,
        *,
        healthy_for_s: Callable[[], float],
        settings: WorkerSettings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        reported: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._jumps = ClockJumpWatch(monotonic)
        self._term = term
        self._healthy_for_s = healthy_for_s
        self._reported = reported
        self._settings = settings or WorkerSettings()
        self._workers = 0

    @property
    def gather_s(self) -> float:
        """Delay by which hints wait for others, because each step reads all workers."""
        return min(_GATHER_S * self._workers, _MOST_GATHER_S)

    async def list_keys(self) -> Collection[str]:
        return [ALL]

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Brings all workers' phases in line with their heartbeats.

        Raises:
            StaleError: another term leads, or each of the workers has changed since; nothing was written.
        """
        healthy_s = self._healthy_for_s()
        async with self._database.snapshot() as connection:
            snapshot = await phases.read_workers(connection)
        self._workers = len(snapshot.workers)
        if snapshot.term != self._term:
            raise StaleError(f"term {self._term} is over, term {snapshot.term} leads")
        # After a jump of the clock every last heartbeat seems hours old, or in the future: silence counts from now on.
        counted_s = min(healthy_s, self._jumps.steady_for_s(snapshot.now), _MAX_HEALTHY_S)
        effects = decide(snapshot, snapshot.now - timedelta(seconds=counted_s), self._settings)
        after_s = effects.requeue_after_s
        if effects.changes and not await self._apply(effects):
            after_s = self.gather_s
        if effects.settles or not effects.unsettled:
            self._reported()
        outcome: Outcome = Done() if after_s is None else Requeue(after_s)
        return dict.fromkeys(keys, outcome)

    async def _apply(self, effects: WorkerEffects) -> bool:
        """Writes the changes of workers that have not changed since the read; returns whether all were written."""
        async with term_transaction(self._database, self._term) as connection:
            written = await phases.write_phases(connection, effects.changes)
            if not written:
                raise StaleError(f"{len(effects.changes)} workers changed since they were read")
            changes = tuple(change for change in effects.changes if change.id in written)
            await write_events(connection, _events(replace(effects, changes=changes)))
            await notify(connection, "worker", [change.id for change in changes])
            changed = [change.id for change in changes if change.new is not change.old]
            await notify(connection, "deployment", await phases.deployments_on(connection, changed))
        return len(changes) == len(effects.changes)


def _events(effects: WorkerEffects) -> Iterable[NewEvent]:
    if effects.breaker_open != effects.breaker_was_open:
        objects = tuple(f"worker:{change.id}" for change in effects.changes)
        if effects.breaker_open:
            message = (
                "many workers fell silent at once, which looks like a fault of the controller: nothing is replaced "
                "until fewer than a third are silent; delete dead workers with "
                "gpuward delete worker NAME --confirm-dead"
            )
            yield NewEvent("breaker_opened", message, objects)
        else:
            yield NewEvent(
                "breaker_closed",
                "fewer than a third of the workers are silent: instances on lost workers are replaced again",
                objects,
            )
    for change in effects.changes:
        if change.new is not change.old:
            yield NewEvent(f"worker_{change.new}", _message(change), (f"worker:{change.id}",), change.evidence)


def _message(change: WorkerChange) -> str:
    match change.new:
        case WorkerPhase.READY:
            return f"worker {change.name} is ready"
        case WorkerPhase.UNREACHABLE:
            return f"worker {change.name} is unreachable: {change.reason}"
        case WorkerPhase.LOST:
            freed = f"at {change.fence_until:%Y-%m-%d %H:%M:%S} UTC" if change.fence_until else "once it returns"
            return f"worker {change.name} is lost: {change.reason}; its claims are released {freed}"
        case WorkerPhase.JOINING:
            return f"worker {change.name} is joining"


class ClockJumpWatch:
    """Detects jumps of another machine's wall clock, against our monotonic one.

    After a jump, older timestamps of that clock must not be used for durations.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last: tuple[float, datetime] | None = None
        self._jumped_at = -math.inf

    def steady_for_s(self, theirs: datetime) -> float:
        """Seconds since the last detected jump of the other clock, which now shows `theirs`; infinite without one."""
        ours = self._monotonic()
        if self._last is not None:
            drift_s = (theirs - self._last[1]).total_seconds() - (ours - self._last[0])
            if abs(drift_s) > JUMP_S:
                self._jumped_at = ours
        self._last = (ours, theirs)
        return ours - self._jumped_at
