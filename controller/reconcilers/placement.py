"""The placement pass over all pending instances, with few commits."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from controller.decide.start_needs import refusal_left_s
from controller.domain.admission import Holders, PendingRow, in_order
from controller.domain.restart_delays import RestartSettings
from controller.leader.placement_passes import PlacementPasses, StillPending
from controller.runtime.lease import term_transaction
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.runtime.tasks import OneInFlight, TimeSlice
from controller.scheduling.explain.unplaced import headline
from controller.store.core.database import Database
from controller.store.core.guards import lock_rows
from controller.store.placement.commit import (
    PlacedStart,
    Preemption,
    commit_placements,
    preempt_victims,
    store_explanations,
)
from controller.store.placement.pass_reads import (
    PendingSnapshot,
    read_awaited,
    read_holders,
    read_pending,
    read_planned_copies,
)

EVERYTHING: Final = "all"  # a single key: pending instances are placed together, in order
_HELD_S: Final = 0.1
_MAX_PENDING: Final = 20_000  # in one pass; the next pass takes the rest
_MAX_COMMITTED: Final = 512  # starts in one transaction, so that it stays short
_MAX_EXPLAINED: Final = 2_000  # explanations in one transaction, so that it stays short

T = TypeVar("T")


@dataclass(slots=True)
class _Decisions:
    undecided: dict[str, PendingRow]  # by id
    starts: list[PlacedStart] = field(default_factory=list)  # not committed yet
    unplaced: list[StillPending] = field(default_factory=list)

    def add(self, decision: PlacedStart | StillPending) -> None:
        del self.undecided[decision.waiting.id]
        if isinstance(decision, StillPending):
            self.unplaced.append(decision)
        else:
            self.starts.append(decision)


@dataclass(frozen=True, slots=True)
class _Observed:
    pending: PendingSnapshot
    awaited: list[PendingRow]  # successors of outdated instances that are stopping
    reserved: list[PendingRow]  # planned replacements, for which capacity is reserved first
    leaving: Holders  # they are ending


@dataclass(frozen=True, slots=True)
class _PassResult:
    placed: int  # number of instances
    lost: list[PlacedStart]  # a race
    unplaced: list[StillPending]
    undecided: list[PendingRow]


class PlacementReconciler:
    """Has a single key, so passes never overlap. `held`: while it returns True, nothing is placed."""

    kind = "placement"

    def __init__(
        self,
        database: Database,
        term: int,
        settings: RestartSettings,
        passes: PlacementPasses,
        hint: Callable[[str], None],
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._term = term
        self._settings = settings
        self._passes = passes
        self._hint = hint
        self._held = held
        self._changed: set[str] = set()  # deployments with instances that this pass placed, explained or preempted

    async def list_keys(self) -> Collection[str]:
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        if self._held():
            return dict.fromkeys(keys, Requeue(_HELD_S))
        try:
            async with self._passes.full_pass() as backlog:
                observed = await self._observe()
                pending = observed.pending
                result = await self._place(observed)
                backlog.extend([*(u.waiting for u in result.unplaced), *(start.waiting for start in result.lost)])
                backlog.extend([*result.undecided, *observed.reserved, *observed.awaited])
                if pending.more:
                    self._passes.mark_backlog()
                await self._explain(result.unplaced)
                self._passes.count_unplaced(result.unplaced)
        finally:
            # Once for all commits, so that a deployment of thousands of instances takes one step for all of them.
            for uid in self._changed:
                self._hint(uid)
            self._changed.clear()
        outcome: Outcome = Done()
        if result.lost or result.undecided or (pending.more and result.placed):
            outcome = Requeue(0.0)
        elif (due_s := self._due_s(pending, result.unplaced)) is not None:
            outcome = Requeue(max(due_s, 0.01))
        return dict.fromkeys(keys, outcome)

    def _due_s(self, pending: PendingSnapshot, unplaced: Sequence[StillPending]) -> float | None:
        """Seconds until time alone lets an instance be placed or preempt; None if it does not."""
        due = [] if pending.next_due_s is None else [pending.next_due_s]
        refused = (refusal_left_s(u.waiting.refused, u.waiting.failures, self._settings) for u in unplaced)
        return min([*due, *(left_s for left_s in refused if left_s > 0)], default=None)

    async def _observe(self) -> _Observed:
        async with self._database.snapshot() as connection:
            pending = await read_pending(
                connection, _MAX_PENDING, failures_per_worker=self._settings.failures_per_worker
            )
            reserved = await read_planned_copies(connection)
            awaited = await read_awaited(connection)
            await self._passes.refresh(connection, [*pending.instances, *awaited, *reserved])
            checked = await self._passes.check_starts(connection, pending.instances, self._settings)
            pending = replace(pending, instances=checked)
            leaving = Holders()
            if pending.instances:
                leaving = await read_holders(connection, self._passes.holdings, only_leaving=True)
        return _Observed(pending, awaited, reserved, leaving)

    async def _place(self, observed: _Observed) -> _PassResult:
        """Decides and commits, both at the same time where that is possible."""
        queue = in_order(observed.pending.instances, observed.awaited)
        reserved, leaving = observed.reserved, observed.leaving
        if not queue:
            return _PassResult(0, [], [], [])
        async with OneInFlight[list[PlacedStart]]() as commits:
            if not self._passes.needs_holders(queue):
                decisions = await self._decide(queue, reserved, leaving, commits)
            else:
                # No commit yet, since a reservation or a preemption needs new decisions with the holders.
                decisions = await self._decide(queue, reserved, leaving)
                if self._passes.needs_holders(u.waiting for u in decisions.unplaced):
                    holders = await self._read_holders([*queue, *reserved])
                    decisions = await self._decide(queue, reserved, holders)
            for batch in _batches(decisions.starts, _MAX_COMMITTED):
                await commits.start(self._commit(batch))
        lost = [start for batch in commits.results for start in batch]
        undecided = list(decisions.undecided.values())
        placed = len(observed.pending.instances) - len(decisions.unplaced) - len(undecided) - len(lost)
        return _PassResult(placed, lost, decisions.unplaced, undecided)

    async def _decide(
        self,
        queue: Sequence[PendingRow],
        reserved: Sequence[PendingRow],
        holders: Holders,
        commits: OneInFlight[list[PlacedStart]] | None = None,
    ) -> _Decisions:
        """Decides all, yielding to the event loop. With `commits`, commits full batches at the same time."""
        decisions = _Decisions({row.id: row for row in queue if not row.awaited})
        time_slice = TimeSlice()
        with closing(self._passes.decide(queue, holders, reserved)) as generator:
            for decision in generator:
                decisions.add(decision)
                if commits is not None and len(decisions.starts) == _MAX_COMMITTED:
                    await commits.start(self._commit(decisions.starts))
                    decisions.starts = []
                await time_slice.yield_if_over()
        return decisions

    async def _read_holders(self, queue: Sequence[PendingRow]) -> Holders:
        """Reads the holders, and the inventory of the same snapshot."""
        async with self._database.snapshot() as connection:
            await self._passes.refresh(connection, queue)
            return await read_holders(connection, self._passes.holdings)

    async def _commit(self, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Returns the starts that lost a race and are placed again."""
        async with term_transaction(self._database, self._term) as connection:
            kept = await commit_placements(connection, starts)
        self._changed.update(s.waiting.deployment_uid for s in kept)
        return self._passes.settle(starts, kept)

    async def _explain(self, unplaced: Sequence[StillPending]) -> None:
        """Stores changed explanations, and preempts victims."""
        changed = [
            u
            for u in unplaced
            if u.victims
            or u.waiting.phase != "pending"
            or u.waiting.message != u.decision.explain.message
            or (u.awaits_servers and u.waiting.reserved_s is None)
            or u.promised not in {None, u.waiting.promised}
        ]
        for batch in _batches(changed, _MAX_EXPLAINED):
            await self._explain_batch(batch)

    async def _explain_batch(self, unplaced: Sequence[StillPending]) -> None:
        preemptions = [Preemption(u.waiting, u.victims) for u in unplaced if u.victims]
        explained = [
            (u.waiting, str(u.decision.reason or headline(u.decision.explain)), u.decision.explain) for u in unplaced
        ]
        locked = {u.waiting.id for u in unplaced} | {v.instance for p in preemptions for v in p.victims}
        victims_of: set[str] = set()
        async with term_transaction(self._database, self._term) as connection:
            await lock_rows(connection, instances=locked)
            victims_of = await preempt_victims(connection, preemptions) if preemptions else victims_of
            awaiting = {u.waiting.id for u in unplaced if u.awaits_servers}
            promised = {u.waiting.id: u.promised for u in unplaced if u.promised is not None}
            await store_explanations(connection, explained, victims_of, awaiting, promised)
        self._changed.update(victims_of, (u.waiting.deployment_uid for u in unplaced))


def _batches(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[first : first + size] for first in range(0, len(things), size))
