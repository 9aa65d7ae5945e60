"""Placement, the batched apply step of the instances: everybody who waits, one pass over the inventory, few commits."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeVar

from controller.domain.holdings import Holders
from controller.domain.pending import PendingRow
from controller.domain.restarts import RestartSettings
from controller.leader.placement_turn import PlacementTurn, UnplacedRow
from controller.runtime.lease import check_term
from controller.runtime.outcome import Done, Outcome, Requeue, StaleError
from controller.runtime.tasks import OneInFlight
from controller.runtime.time_slice import TimeSlice
from controller.scheduling.explain.unplaced import headline
from controller.store.core.database import Database
from controller.store.core.errors import LostGuardError
from controller.store.core.locks import lock_rows
from controller.store.placement.commit import PlacedStart, commit_placements, store_explanations
from controller.store.placement.pending import PendingSnapshot, read_pending, read_planned_copies
from controller.store.placement.preemption import Preemption, preempt_victims, read_holders

EVERYTHING: Final = "all"  # the one key: whoever waits is looked at together, in order
_MAX_WAITING: Final = 20_000  # looked at in one pass; those behind them wait for the next
_MAX_COMMITTED: Final = 512  # starts in one transaction: a moment's work of the database
_MAX_TOLD: Final = 2_000  # why they wait, likewise

T = TypeVar("T")


@dataclass(slots=True)
class _Decided:
    """Who starts and is not committed yet, who waits on, and who has no answer yet, by id."""

    behind: dict[str, PendingRow]
    starts: list[PlacedStart] = field(default_factory=list)
    unplaced_rows: list[UnplacedRow] = field(default_factory=list)

    def take(self, answer: PlacedStart | UnplacedRow) -> None:
        del self.behind[answer.waiting.id]
        if isinstance(answer, UnplacedRow):
            self.unplaced_rows.append(answer)
        else:
            self.starts.append(answer)


@dataclass(frozen=True, slots=True)
class _Served:
    """What a pass has come to: how many got a place, who lost a race, who fits nowhere, who was not looked at."""

    placed: int
    lost: list[PlacedStart]
    unplaced_rows: list[UnplacedRow]
    behind: list[PendingRow]


class PlacementReconciler:
    """One key, so never two passes at once. Lives as long as one term."""

    kind = "placement"

    def __init__(
        self,
        database: Database,
        term: int,
        settings: RestartSettings,
        placement_turn: PlacementTurn,
        hint: Callable[[str], None],
    ) -> None:
        self._database = database
        self._term = term
        self._settings = settings
        self._placement_turn = placement_turn
        self._hint = hint
        self._concerned: set[str] = set()  # deployments to which something happened in this pass

    async def list_keys(self) -> Collection[str]:
        """The one key."""
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """One pass: who waits, where they fit, and the commit of it."""
        try:
            async with self._placement_turn.whole_pass() as left:
                seen, reserved = await self._observe()
                served = await self._place(seen.instances, reserved)
                left.extend([*(one.waiting for one in served.unplaced_rows), *(one.waiting for one in served.lost)])
                left.extend([*served.behind, *reserved])
                if seen.more:
                    self._placement_turn.note_pending()
                await self._tell(served.unplaced_rows)
                self._placement_turn.unplaced(served.unplaced_rows)
        finally:
            # Once for all of its commits: a deployment of thousands is looked at as a whole.
            for uid in self._concerned:
                self._hint(uid)
            self._concerned.clear()
        outcome: Outcome = Done()
        if served.lost or served.behind or (seen.more and served.placed):
            outcome = Requeue(0.0)
        elif seen.next_due_s is not None:
            outcome = Requeue(max(seen.next_due_s, 0.01))
        return dict.fromkeys(keys, outcome)

    async def _place(self, waiting: Sequence[PendingRow], reserved: Sequence[PendingRow]) -> _Served:
        """Decides and commits.

        Some are committed while others are decided; but none before all are, where room may be kept for one or made.
        """
        async with OneInFlight[list[PlacedStart]]() as commits:
            if not self._placement_turn.needs_holders(waiting):
                decided = await self._decide(waiting, reserved, commits=commits)
            else:
                decided = await self._decide(waiting, reserved)
                if self._placement_turn.needs_holders(one.waiting for one in decided.unplaced_rows):
                    holders = await self._holders([*waiting, *reserved])
                    decided = await self._decide(waiting, reserved, holders)
            for some in _pieces(decided.starts, _MAX_COMMITTED):
                await commits.start(self._commit(some))
        lost = [start for some in commits.results for start in some]
        behind = list(decided.behind.values())
        placed = len(waiting) - len(decided.unplaced_rows) - len(behind) - len(lost)
        return _Served(placed, lost, decided.unplaced_rows, behind)

    async def _decide(
        self,
        waiting: Sequence[PendingRow],
        reserved: Sequence[PendingRow],
        holders: Holders | None = None,
        commits: OneInFlight[list[PlacedStart]] | None = None,
    ) -> _Decided:
        """Decides all, and lets others have their turn meanwhile. Commits what comes together, where it may."""
        decided = _Decided({one.id: one for one in waiting})
        time_slice = TimeSlice()
        with closing(self._placement_turn.decide(waiting, holders, reserved)) as answers:
            for answer in answers:
                decided.take(answer)
                if commits is not None and len(decided.starts) == _MAX_COMMITTED:
                    await commits.start(self._commit(decided.starts))
                    decided.starts = []
                await time_slice.yield_if_over()
        return decided

    async def _observe(self) -> tuple[PendingSnapshot, list[PendingRow]]:
        """Who waits, and for whom room is kept before them."""
        async with self._database.snapshot() as connection:
            seen = await read_pending(connection, _MAX_WAITING, failures_per_worker=self._settings.failures_per_worker)
            reserved = await read_planned_copies(connection)
            await self._placement_turn.refresh(connection, [*seen.instances, *reserved])
        return seen, reserved

    async def _holders(self, waiting: Sequence[PendingRow]) -> Holders:
        """Read with the inventory of the same moment."""
        async with self._database.snapshot() as connection:
            await self._placement_turn.refresh(connection, waiting)
            return await read_holders(connection, self._placement_turn.holdings)

    async def _commit(self, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Commits what holds; returns what lost a race and is to be placed again."""
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            kept = await commit_placements(connection, starts)
        self._concerned.update(s.waiting.deployment_uid for s in kept)
        return self._placement_turn.committed(starts, kept)

    async def _tell(self, unplaced_rows: Sequence[UnplacedRow]) -> None:
        """Why they wait on; and those that are pushed out, that they have to leave."""
        changed = [
            one
            for one in unplaced_rows
            if one.victims or one.waiting.phase != "pending" or one.waiting.message != one.decision.explain.message
        ]
        for some in _pieces(changed, _MAX_TOLD):
            await self._tell_some(some)

    async def _tell_some(self, unplaced_rows: Sequence[UnplacedRow]) -> None:
        pushes = [Preemption(one.waiting, one.victims) for one in unplaced_rows if one.victims]
        leaving: set[str] = set()
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            concerned = {one.waiting.id for one in unplaced_rows} | {
                o.instance for push in pushes for o in push.victims
            }
            await lock_rows(connection, instances=concerned)
            try:
                leaving = await preempt_victims(connection, pushes) if pushes else leaving
            except LostGuardError as lost:
                raise StaleError(str(lost)) from lost
            explained = [
                (one.waiting, str(one.decision.reason or headline(one.decision.explain)), one.decision.explain)
                for one in unplaced_rows
            ]
            await store_explanations(connection, explained, leaving)
        self._concerned.update(leaving, (one.waiting.deployment_uid for one in unplaced_rows))


def _pieces(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """What goes into one transaction each."""
    return (things[first : first + size] for first in range(0, len(things), size))
