"""Who places: the inventory of one term, what is decided on it, and the commit of that. One at a time.

Two come here. The placement's own pass serves everybody who waits. A step of the instances that makes new ones may
place them in its own transaction while nobody else waits: that spares them a second commit and all that is read for
it. The inventory is a cache; the commit checks every row again under lock.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from controller.decide.start_command import start_payload
from controller.domain.holdings import Holder, Holders, Holdings
from controller.domain.pending import PendingInstance, PendingRow
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.leader.inventory_cache import InventoryCache
from controller.runtime.clock import Clock
from controller.scheduling.admission.admit import RESERVE_AFTER_S, admit, may_reserve
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.store.placement.commit import PlacedStart
from controller.store.placement.pending import RevisionKey, read_revisions
from schemas.api.explain import Explain
from schemas.manifest.deployment import DeploymentSpec
from schemas.reasons import Reason

_PATIENCE_S: Final = 0.02
_MAX_PUSHES: Final = 8  # of one pass; each takes some 50 ms among ten thousands, and is told at the end of it alone
_MAX_AT_ONCE: Final = 256  # of one step; more would hold its deployments' rows for long
_MAX_REVISIONS_KEPT: Final = 1_000  # parsed specs, some 14 KiB each; those of a pass are kept besides


class PlacementMetrics(Protocol):
    """What placement counts."""

    def placed(self, outcome: str, n: int) -> None:
        """`n` instances were `placed`, `unplaced` or `lost` (a race, and are placed again)."""

    def placement_seconds(self, seconds: float) -> None:
        """One instance had its claims committed so long after it began to wait."""


@dataclass(frozen=True, slots=True)
class UnplacedRow:
    """One who waits on, and why. `victims`: those whom it pushes out."""

    waiting: PendingRow
    decision: Unplaced
    victims: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance that is about to be created, and what is known of its revision."""

    waiting: PendingRow
    spec: DeploymentSpec
    need: Need


@dataclass(frozen=True, slots=True)
class _Revision:
    """What is kept of one: `ask` is that of each of its instances, but for the instance's own name."""

    spec: DeploymentSpec
    need: Need
    ask: Ask


class PlacementTurn:
    """Lives as long as one term."""

    def __init__(self, *, clock: Clock, metrics: PlacementMetrics, reserve_after_s: float = RESERVE_AFTER_S) -> None:
        self._clock = clock
        self._reserve_after_s = reserve_after_s
        self._metrics = metrics
        self._cache = InventoryCache()
        self._revisions: OrderedDict[RevisionKey, _Revision | ValueError] = OrderedDict()
        self._turn = asyncio.Lock()
        self._joined = 0  # rises whenever somebody may have begun to wait
        self._nobody_waits_at: int | None = None  # what it was when a pass that served everybody began
        self._began = 0.0

    @property
    def inventory(self) -> Inventory:
        """What is claimed, and what this turn has reserved."""
        return self._cache.inventory

    @property
    def holdings(self) -> Holdings:
        """Who holds what, as of the last refresh."""
        return self._cache.holdings

    def note_pending(self) -> None:
        """Newcomers are not placed at once before a pass has served whoever waits now."""
        self._joined += 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The inventory for as long as one pass takes, its commits included; what failed is taken back."""
        async with self._turn:
            self._began = self._clock.monotonic()
            self.inventory.begin_pass()
            try:
                yield
            except BaseException:
                self.inventory.rollback()  # whatever was committed all the same is read at the next refresh
                self._nobody_waits_at = None
                raise

    @asynccontextmanager
    async def whole_pass(self) -> AsyncIterator[list[PendingRow]]:
        """A turn that serves everybody. To the list goes who is left waiting; while it is not empty, all must queue."""
        async with self.turn():
            joined, left = self._joined, list[PendingRow]()
            yield left
            self._nobody_waits_at = None if left else joined

    @asynccontextmanager
    async def at_once(self, new_instances: Sequence[NewInstance]) -> AsyncIterator[list[PlacedStart]]:
        """A turn for instances that are about to be created, where nobody is ahead of them; else an empty list.

        A pass that serves nobody is over in a moment, so that is waited for, and a longer one is not.
        """
        starts: list[PlacedStart] = []
        async with AsyncExitStack() as turn:
            if self._nobody_waits() and 0 < len(new_instances) <= _MAX_AT_ONCE:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await turn.enter_async_context(self.turn())
                    starts = self._decide_at_once(new_instances) if self._nobody_waits() else starts
            yield starts

    def _nobody_waits(self) -> bool:
        return self._nobody_waits_at == self._joined

    def _decide_at_once(self, new_instances: Sequence[NewInstance]) -> list[PlacedStart]:
        for one in new_instances:
            self._learn((one.waiting.deployment_uid, one.waiting.revision), one.spec, one.need)
        answers = self.decide([one.waiting for one in new_instances])
        return [answer for answer in answers if isinstance(answer, PlacedStart)]

    # What is known

    async def refresh(self, connection: Any, waiting: Sequence[PendingRow]) -> None:
        """Reads what changed, and the revisions that are asked for. In one REPEATABLE READ transaction."""
        await self._cache.refresh(connection)
        missing = {(w.deployment_uid, w.revision) for w in waiting} - self._revisions.keys()
        if missing:
            for key, row in (await read_revisions(connection, sorted(missing))).items():
                try:
                    self._learn(key, *row.parse())
                except ValueError as error:
                    self._revisions[key] = error
        for one in waiting:
            self._revisions.move_to_end((one.deployment_uid, one.revision))
        while len(self._revisions) > max(_MAX_REVISIONS_KEPT, len(waiting)):
            self._revisions.popitem(last=False)

    def _learn(self, key: RevisionKey, spec: DeploymentSpec, need: Need) -> None:
        """Keeps the spec, and what each instance of it asks but for its own name; or why this version cannot tell."""
        try:
            engine = engine_for(spec)
            engine.validate(spec)
            ask = asks_for(spec, need, engine, instance="", deployment_uid=key[0])
            self._revisions[key] = _Revision(spec, need, ask)
        except ValueError as error:
            self._revisions[key] = error

    # What is decided

    def decide(
        self,
        waiting: Sequence[PendingRow],
        holders: Holders | None = None,
        reserved: Sequence[PendingRow] = (),
    ) -> Generator[PlacedStart | UnplacedRow, None, None]:
        """Where everybody goes, one at a time; who cannot even be asked for fits nowhere, and holds nobody else up.

        Where many push others out, the last may get no answer. Whoever does not ask for all answers closes it.

        Args:
            waiting: in the order in which they are served.
            holders: whose claims they are, where room is to be kept for somebody or made.
            reserved: for which capacity is reserved before all of these.
        """
        self.inventory.rollback()  # an earlier answer of this turn
        by_id = {one.id: one for one in waiting}
        impossible: list[UnplacedRow] = []
        answers = admit(
            self.inventory,
            self._waiters(waiting, impossible),
            holders,
            reserve_after_s=self._reserve_after_s,
            reserved=self._asks(reserved),
            max_preemptions=_MAX_PUSHES,
        )
        with closing(answers):
            for served in answers:
                one = by_id[served.decision.instance]
                if isinstance(served.decision, Placed):
                    yield self._start(one, served.decision)
                else:
                    yield UnplacedRow(one, served.decision, served.victims)
        yield from impossible

    def needs_holders(self, waiting: Iterable[PendingRow]) -> bool:
        """Whether somebody, should it not fit, may have room made or kept: then the occupants are to be known."""
        return any(may_reserve(one, self._reserve_after_s) for one in waiting)

    def _waiters(self, waiting: Iterable[PendingRow], impossible: list[UnplacedRow]) -> Iterator[PendingInstance]:
        for one in waiting:
            try:
                yield one.pending_by(self._revision(one).ask)
            except ValueError as error:
                impossible.append(UnplacedRow(one, _impossible(one, error)))

    def _asks(self, some: Iterable[PendingRow]) -> list[Ask]:
        """What they ask, but for those that cannot even be asked for."""
        asks = []
        for one in some:
            with suppress(ValueError):
                asks.append(one.ask_by(self._revision(one).ask))
        return asks

    def _revision(self, waiting: PendingRow) -> _Revision:
        found = self._revisions[waiting.deployment_uid, waiting.revision]
        if isinstance(found, ValueError):
            raise found
        return found

    def _start(self, waiting: PendingRow, placed: Placed) -> PlacedStart:
        revision = self._revision(waiting)
        gpus = self.inventory.gpus
        leader = self.inventory.worker(placed.worker_id).host
        payloads = []
        for rank in range(len(placed.workers)):
            held = [(c, row) for c in placed.of_rank(rank) if (row := self.inventory.gpu_row(c.device)) is not None]
            payloads.append(
                start_payload(
                    revision.spec,
                    deployment=waiting.deployment,
                    deployment_uid=waiting.deployment_uid,
                    gpus=[claim for claim, _ in held],
                    engine=placed.engine,
                    layout=placed.layout,
                    gpu_mib=max((int(gpus.total[row]) for _, row in held), default=0),
                    others_mib=max((int(gpus.claimed[row]) - c.memory_mib for c, row in held), default=0),
                    gang=f"{waiting.id}/{waiting.epoch + 1}",
                    rank=rank,
                    leader=leader if len(placed.workers) > 1 else "",
                    need=revision.need,
                )
            )
        return PlacedStart(waiting, placed, tuple(payloads))

    # What is committed

    def committed(self, starts: Sequence[PlacedStart], kept: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Counts, once the transaction is committed; gives back and returns what lost a race."""
        done = {s.waiting.id for s in kept}
        lost = [s for s in starts if s.waiting.id not in done]
        for start in lost:
            self.inventory.unreserve(start.placed)
        elapsed = self._clock.monotonic() - self._began
        for start in kept:
            self._metrics.placement_seconds(start.waiting.waited_s + elapsed)
        self._metrics.placed("placed", len(kept))
        self._metrics.placed("lost", len(lost))
        return lost

    def unplaced(self, instances: Sequence[UnplacedRow]) -> None:
        """Counts who fits nowhere."""
        self._metrics.placed("unplaced", len(instances))


def _impossible(waiting: PendingRow, error: ValueError) -> Unplaced:
    """For a spec that this version cannot run, as after a downgrade: waits for a changed spec."""
    message = f"this version cannot run its spec: {error}"
    return Unplaced(waiting.id, Explain(workers=0, rejected={Reason.ENGINE_UNSUPPORTED: 1}, message=message))
