"""Placement, the batched apply step of the instances: one pass over all pending instances, few commits."""

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

EVERYTHING: Final = "all"  # the one key: pending instances are placed together, in order
_HELD_S: Final = 0.1
_MAX_PENDING: Final = 20_000  # in one pass; the next pass takes the others
_MAX_COMMITTED: Final = 512  # starts in one transaction, so that it stays short
_MAX_EXPLAINED: Final = 2_000  # explanations in one transaction, likewise

T = TypeVar("T")


@dataclass(slots=True)
class _Decisions:
    """The decisions of one pass.

    Attributes:
        undecided: instances without a decision yet, by id.
        starts: placed and not committed yet.
        unplaced: stay pending.
    """

    undecided: dict[str, PendingRow]
    starts: list[PlacedStart] = field(default_factory=list)
    unplaced: list[StillPending] = field(default_factory=list)

    def add(self, decision: PlacedStart | StillPending) -> None:
        del self.undecided[decision.waiting.id]
        if isinstance(decision, StillPending):
            self.unplaced.append(decision)
        else:
            self.starts.append(decision)


@dataclass(frozen=True, slots=True)
class _Observed:
    """What one pass starts from.

    Attributes:
        pending: the pending instances.
        awaited: the successors of outdated instances that are stopping.
        reserved: planned replacements, for which capacity is reserved before all others.
        leaving: the holders that end.
    """

    pending: PendingSnapshot
    awaited: list[PendingRow]
    reserved: list[PendingRow]
    leaving: Holders

    def queue(self) -> list[PendingRow]:
        """All in order."""
        return in_order(self.pending.instances, self.awaited)


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The result of one pass: how many were placed, which lost a race, which fit nowhere, which have no decision."""

    placed: int
    lost: list[PlacedStart]
    unplaced: list[StillPending]
    undecided: list[PendingRow]


class PlacementReconciler:
    """One key, so never two passes at once. Lives as long as one term."""

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
        """The one key."""
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """One full pass: reads the pending instances, decides, and commits. None while it is held."""
        if self._held():
            return dict.fromkeys(keys, Requeue(_HELD_S))
        try:
            async with self._passes.full_pass() as backlog:
                seen = await self._observe()
                pending, reserved = seen.pending, seen.reserved
                result = await self._place(seen)
                backlog.extend([*(one.waiting for one in result.unplaced), *(one.waiting for one in result.lost)])
                backlog.extend([*result.undecided, *reserved, *seen.awaited])
                if pending.more:
                    self._passes.mark_backlog()
                await self._explain(result.unplaced)
                self._passes.count_unplaced(result.unplaced)
        finally:
            # Once for all commits: a deployment of thousands takes one step for all of them.
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
        """Seconds until time alone lets an instance be placed, or preempt others. None if it does not."""
        due = [] if pending.next_due_s is None else [pending.next_due_s]
        held = (refusal_left_s(one.waiting.refused, one.waiting.failures, self._settings) for one in unplaced)
        return min([*due, *(left_s for left_s in held if left_s > 0)], default=None)

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

    async def _place(self, seen: _Observed) -> _PassResult:
        """Decides and commits.

        Commits begin while others are still being decided. Where a reservation or a preemption is possible, all
        decisions come first, since they may have to be made again with the holders.
        """
        waiting, reserved, leaving = seen.queue(), seen.reserved, seen.leaving
        if not waiting:
            return _PassResult(0, [], [], [])
        async with OneInFlight[list[PlacedStart]]() as commits:
            if not self._passes.needs_holders(waiting):
                decisions = await self._decide(waiting, reserved, leaving, commits)
            else:
                decisions = await self._decide(waiting, reserved, leaving)
                if self._passes.needs_holders(one.waiting for one in decisions.unplaced):
                    holders = await self._read_holders([*waiting, *reserved])
                    decisions = await self._decide(waiting, reserved, holders)
            for batch in _batches(decisions.starts, _MAX_COMMITTED):
                await commits.start(self._commit(batch))
        lost = [start for batch in commits.results for start in batch]
        undecided = list(decisions.undecided.values())
        placed = len(seen.pending.instances) - len(decisions.unplaced) - len(undecided) - len(lost)
        return _PassResult(placed, lost, decisions.unplaced, undecided)

    async def _decide(
        self,
        waiting: Sequence[PendingRow],
        reserved: Sequence[PendingRow],
        holders: Holders,
        commits: OneInFlight[list[PlacedStart]] | None = None,
    ) -> _Decisions:
        """Decides all, yielding to the event loop. With `commits`, full batches are committed at the same time."""
        decisions = _Decisions({one.id: one for one in waiting if not one.awaited})
        time_slice = TimeSlice()
        with closing(self._passes.decide(waiting, holders, reserved)) as generator:
            for decision in generator:
                decisions.add(decision)
                if commits is not None and len(decisions.starts) == _MAX_COMMITTED:
                    await commits.start(self._commit(decisions.starts))
                    decisions.starts = []
                await time_slice.yield_if_over()
        return decisions

    async def _read_holders(self, waiting: Sequence[PendingRow]) -> Holders:
        """The instances with claims, and the inventory of the same moment."""
        async with self._database.snapshot() as connection:
            await self._passes.refresh(connection, waiting)
            return await read_holders(connection, self._passes.holdings)

    async def _commit(self, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Commits these starts; returns those that lost a race and are placed again."""
        async with term_transaction(self._database, self._term) as connection:
            kept = await commit_placements(connection, starts)
        self._changed.update(s.waiting.deployment_uid for s in kept)
        return self._passes.settle(starts, kept)

    async def _explain(self, unplaced: Sequence[StillPending]) -> None:
        """Stores changed explanations, and preempts victims."""
        changed = [
            one
            for one in unplaced
            if one.victims
            or one.waiting.phase != "pending"
            or one.waiting.message != one.decision.explain.message
            or (one.awaits_servers and one.waiting.reserved_s is None)
            or one.promised not in {None, one.waiting.promised}
        ]
        for batch in _batches(changed, _MAX_EXPLAINED):
            await self._explain_batch(batch)

    async def _explain_batch(self, unplaced: Sequence[StillPending]) -> None:
        preemptions = [Preemption(one.waiting, one.victims) for one in unplaced if one.victims]
        explained = [
            (one.waiting, str(one.decision.reason or headline(one.decision.explain)), one.decision.explain)
            for one in unplaced
        ]
        locked = {one.waiting.id for one in unplaced} | {v.instance for p in preemptions for v in p.victims}
        victims_of: set[str] = set()
        async with term_transaction(self._database, self._term) as connection:
            await lock_rows(connection, instances=locked)
            victims_of = await preempt_victims(connection, preemptions) if preemptions else victims_of
            awaiting = {one.waiting.id for one in unplaced if one.awaits_servers}
            promised = {one.waiting.id: one.promised for one in unplaced if one.promised is not None}
            await store_explanations(connection, explained, victims_of, awaiting, promised)
        self._changed.update(victims_of, (one.waiting.deployment_uid for one in unplaced))


def _batches(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Each of them goes into one transaction."""
    return (things[first : first + size] for first in range(0, len(things), size))
