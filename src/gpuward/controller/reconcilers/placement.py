"""Placement, the batched apply step of the instances: everybody who waits, one pass over the inventory, one commit.

The inventory here is a cache: the commit checks every row again under lock, and what lost a race is placed again.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from gpuward.controller.decide.backoff import RestartSettings
from gpuward.controller.decide.orders import start_payload
from gpuward.controller.domain.placement import Ask, Placed, Unplaced
from gpuward.controller.engines.registry import engine_for
from gpuward.controller.runtime.clock import Clock
from gpuward.controller.runtime.lease import check_term
from gpuward.controller.runtime.outcome import Again, Done, Outcome
from gpuward.controller.scheduling.estimate import asks_for
from gpuward.controller.scheduling.place import place
from gpuward.controller.store.database import Database
from gpuward.controller.store.inventory import InventoryCache
from gpuward.controller.store.placement import PlacedStart, commit_placements, store_explanations
from gpuward.controller.store.waiting import (
    RevisionKey,
    RevisionRow,
    WaitingInstance,
    read_revisions,
    read_waiting,
)
from gpuward.schemas.manifest import DeploymentSpec
from gpuward.schemas.objects import Explain
from gpuward.schemas.reasons import Reason

EVERYTHING: Final = "all"  # the one key: whoever waits is looked at together, in order
_MAX_WAITING: Final = 20_000  # looked at in one pass; those behind them wait for the next
_MAX_COMMITTED: Final = 2_000  # starts in one transaction, so that it stays well under its deadline
_MAX_REVISIONS_KEPT: Final = 1_000  # parsed specs, some 14 KiB each; those of a pass are kept besides


class PlacementMetrics(Protocol):
    """What placement counts."""

    def placed(self, outcome: str, n: int) -> None:
        """`n` instances were `placed`, `unplaced` or `lost` (a race, and are placed again)."""

    def placement_seconds(self, seconds: float) -> None:
        """One instance had its claims committed so long after it began to wait."""


class PlacementReconciler:
    """One key, so never two passes at once. Lives as long as one term."""

    kind = "placement"

    def __init__(
        self,
        database: Database,
        term: int,
        settings: RestartSettings,
        *,
        clock: Clock,
        metrics: PlacementMetrics,
        hint: Callable[[str], None],
    ) -> None:
        self._database = database
        self._term = term
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._hint = hint
        self._cache = InventoryCache()
        self._revisions: OrderedDict[RevisionKey, tuple[DeploymentSpec, Ask] | ValueError] = OrderedDict()

    async def list_keys(self) -> Collection[str]:
        """The one key."""
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """One pass: who waits, where they fit, and the commit of it."""
        began = self._clock.monotonic()
        waiting, next_due_s = await self._observe()
        inventory = self._cache.inventory
        inventory.begin_pass()
        try:
            placed, unplaced = self._decide(waiting)
            lost = 0
            for first in range(0, len(placed), _MAX_COMMITTED):
                lost += await self._commit(placed[first : first + _MAX_COMMITTED], began)
        except BaseException:
            inventory.rollback()  # whatever was committed all the same is read at the next refresh
            raise
        await self._explain(unplaced)
        self._metrics.placed("unplaced", len(unplaced))
        outcome: Outcome = Done()
        if lost:
            outcome = Again(0.0)
        elif next_due_s is not None:
            outcome = Again(max(next_due_s, 0.01))
        return dict.fromkeys(keys, outcome)

    async def _observe(self) -> tuple[list[WaitingInstance], float | None]:
        async with self._database.snapshot() as connection:
            waiting, next_due_s = await read_waiting(
                connection, _MAX_WAITING, failures_per_worker=self._settings.failures_per_worker
            )
            if waiting:
                await self._cache.refresh(connection)
            missing = {(w.deployment_uid, w.revision) for w in waiting} - self._revisions.keys()
            if missing:
                found = await read_revisions(connection, sorted(missing))
                self._revisions |= {key: _parsed(key, row) for key, row in found.items()}
        for one in waiting:
            self._revisions.move_to_end((one.deployment_uid, one.revision))
        while len(self._revisions) > max(_MAX_REVISIONS_KEPT, len(waiting)):
            self._revisions.popitem(last=False)
        return waiting, next_due_s

    def _decide(
        self, waiting: Sequence[WaitingInstance]
    ) -> tuple[list[PlacedStart], list[tuple[WaitingInstance, Unplaced]]]:
        """Where everybody goes; who cannot even be asked for fits nowhere, and holds nobody else up."""
        asked: list[tuple[WaitingInstance, Ask]] = []
        placed: list[PlacedStart] = []
        unplaced: list[tuple[WaitingInstance, Unplaced]] = []
        for one in waiting:
            try:
                asked.append((one, self._ask(one)))
            except ValueError as error:
                unplaced.append((one, _impossible(one, error)))
        decisions = place(self._cache.inventory, [ask for _, ask in asked])
        for (one, _), decision in zip(asked, decisions, strict=True):
            if isinstance(decision, Placed):
                placed.append(self._start(one, decision))
            else:
                unplaced.append((one, decision))
        return placed, unplaced

    def _ask(self, waiting: WaitingInstance) -> Ask:
        _, ask = self._revision(waiting)
        avoid = frozenset({waiting.avoid_worker}) if waiting.avoid_worker else frozenset[str]()
        return replace(ask, instance=waiting.id, avoid_workers=avoid)

    def _revision(self, waiting: WaitingInstance) -> tuple[DeploymentSpec, Ask]:
        found = self._revisions[waiting.deployment_uid, waiting.revision]
        if isinstance(found, ValueError):
            raise found
        return found

    def _start(self, waiting: WaitingInstance, placed: Placed) -> PlacedStart:
        spec, _ = self._revision(waiting)
        payloads = tuple(
            start_payload(
                spec,
                deployment=waiting.deployment,
                deployment_uid=waiting.deployment_uid,
                gpus=[c for c in placed.of_rank(rank) if self._cache.inventory.gpu_row(c.device) is not None],
            )
            for rank in range(len(placed.workers))
        )
        return PlacedStart(waiting, placed, payloads)

    async def _commit(self, starts: Sequence[PlacedStart], began: float) -> int:
        """Commits what holds; returns how many lost a race and are to be placed again."""
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            kept = await commit_placements(connection, starts)
        done = {s.waiting.id for s in kept}
        lost = [s for s in starts if s.waiting.id not in done]
        for start in lost:
            self._cache.inventory.unreserve(start.placed)
        elapsed = self._clock.monotonic() - began
        for start in kept:
            self._metrics.placement_seconds(start.waiting.waited_s + elapsed)
        self._metrics.placed("placed", len(kept))
        self._metrics.placed("lost", len(lost))
        self._hint_all(s.waiting.deployment_uid for s in kept)
        return len(lost)

    async def _explain(self, unplaced: Sequence[tuple[WaitingInstance, Unplaced]]) -> None:
        changed = [(w, u) for w, u in unplaced if w.phase != "pending" or w.message != u.explain.message]
        if not changed:
            return
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await store_explanations(connection, changed)
        self._hint_all(w.deployment_uid for w, _ in changed)

    def _hint_all(self, uids: Iterable[str]) -> None:
        for uid in set(uids):
            self._hint(uid)


def _parsed(key: RevisionKey, row: RevisionRow) -> tuple[DeploymentSpec, Ask] | ValueError:
    """The spec, and what each instance of it asks but for its own name; or why this version cannot tell."""
    try:
        spec, need = row.parse()
        engine = engine_for(spec)
        engine.validate(spec)
        return spec, asks_for(spec, need, engine, instance="", deployment_uid=key[0])
    except ValueError as error:
        return error


def _impossible(waiting: WaitingInstance, error: ValueError) -> Unplaced:
    """For a spec that this version cannot run, as after a downgrade: waits for a changed spec."""
    message = f"this version cannot run its spec: {error}"
    return Unplaced(waiting.id, Explain(workers=0, rejected={Reason.ENGINE_UNSUPPORTED: 1}, message=message))
