"""Placement, the batched apply step of the instances: everybody who waits, one pass over the inventory, one commit."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from gpuward.controller.decide.backoff import RestartSettings
from gpuward.controller.reconcilers.placer import Placer, Undecided
from gpuward.controller.runtime.lease import check_term
from gpuward.controller.runtime.outcome import Again, Done, Outcome, StaleError
from gpuward.controller.scheduling.queueing import Occupants
from gpuward.controller.store.database import Database
from gpuward.controller.store.errors import LostGuardError
from gpuward.controller.store.locks import lock_rows
from gpuward.controller.store.occupants import Push, push_out, read_occupants
from gpuward.controller.store.placement import PlacedStart, commit_placements, store_explanations
from gpuward.controller.store.waiting import Waiting, WaitingInstance, read_copies_to_come, read_waiting

EVERYTHING: Final = "all"  # the one key: whoever waits is looked at together, in order
_MAX_WAITING: Final = 20_000  # looked at in one pass; those behind them wait for the next
_MAX_COMMITTED: Final = 2_000  # starts in one transaction, so that it stays well under its deadline


class PlacementReconciler:
    """One key, so never two passes at once. Lives as long as one term."""

    kind = "placement"

    def __init__(
        self,
        database: Database,
        term: int,
        settings: RestartSettings,
        placer: Placer,
        hint: Callable[[str], None],
    ) -> None:
        self._database = database
        self._term = term
        self._settings = settings
        self._placer = placer
        self._hint = hint

    async def list_keys(self) -> Collection[str]:
        """The one key."""
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """One pass: who waits, where they fit, and the commit of it."""
        async with self._placer.whole_pass() as left:
            seen, ahead = await self._observe()
            waiting = seen.instances
            decided = self._placer.decide(waiting, ahead=ahead)
            if self._placer.room_matters(decided):
                decided = self._placer.decide(waiting, await self._occupants([*waiting, *ahead]), ahead)
            placed, unplaced = decided.placed, decided.unplaced
            lost: list[PlacedStart] = []
            for first in range(0, len(placed), _MAX_COMMITTED):
                lost += await self._commit(placed[first : first + _MAX_COMMITTED])
            left.extend([*(one for one, _ in unplaced), *(start.waiting for start in lost), *decided.behind, *ahead])
            if seen.more:
                self._placer.somebody_waits()
            await self._tell(unplaced, decided.pushes)
            self._placer.unplaced(unplaced)
        outcome: Outcome = Done()
        if lost or decided.behind or (seen.more and placed):
            outcome = Again(0.0)
        elif seen.next_due_s is not None:
            outcome = Again(max(seen.next_due_s, 0.01))
        return dict.fromkeys(keys, outcome)

    async def _observe(self) -> tuple[Waiting, list[WaitingInstance]]:
        """Who waits, and for whom room is kept before them."""
        async with self._database.snapshot() as connection:
            seen = await read_waiting(connection, _MAX_WAITING, failures_per_worker=self._settings.failures_per_worker)
            ahead = await read_copies_to_come(connection)
            await self._placer.refresh(connection, [*seen.instances, *ahead])
        return seen, ahead

    async def _occupants(self, waiting: Sequence[WaitingInstance]) -> Occupants:
        """Read with the inventory of the same moment."""
        async with self._database.snapshot() as connection:
            await self._placer.refresh(connection, waiting)
            return await read_occupants(connection, self._placer.holdings)

    async def _commit(self, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Commits what holds; returns what lost a race and is to be placed again."""
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            kept = await commit_placements(connection, starts)
        self._hint_all(s.waiting.deployment_uid for s in kept)
        return self._placer.committed(starts, kept)

    async def _tell(self, unplaced: Sequence[Undecided], pushes: Sequence[Push]) -> None:
        """Why they wait on; and those that are pushed out, that they have to leave."""
        changed = [(w, u) for w, u in unplaced if w.phase != "pending" or w.message != u.explain.message]
        if not changed and not pushes:
            return
        leaving: set[str] = set()
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            concerned = {w.id for w, _ in changed} | {o.instance for push in pushes for o in push.leave}
            await lock_rows(connection, instances=concerned | {push.waiting.id for push in pushes})
            try:
                leaving = await push_out(connection, pushes) if pushes else leaving
            except LostGuardError as lost:
                raise StaleError(str(lost)) from lost
            await store_explanations(connection, changed, leaving)
        self._hint_all([w.deployment_uid for w, _ in changed])
        self._hint_all(leaving)

    def _hint_all(self, uids: Iterable[str]) -> None:
        for uid in set(uids):
            self._hint(uid)
