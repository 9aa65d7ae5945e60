"""Placement passes: the inventory of a term, the decisions on it, and the effect of their commits on it.

Passes run one at a time, and two reconcilers make them. Placement's full pass covers all pending instances. A step of
the instances may place those that it creates in its own transaction while no other instance is pending, which saves a
second commit and its reads. The inventory is a cache; the commit checks every row again under lock.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog

from controller.decide.start_command import rendezvous_port, start_payload
from controller.domain.admission import Destination, Holder, Holders, Holdings, PendingInstance, PendingRow
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.domain.restart_delays import RestartSettings
from controller.engines.base import RefusedFlagError
from controller.engines.registry import engine_for
from controller.leader.start_checks import check_starts
from controller.runtime.clock import Clock
from controller.runtime.metrics import Metrics
from controller.scheduling.admission.admit import DEFAULT_RESERVE, ReserveTimes, admit, may_reserve
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.placement.commit import PlacedStart
from controller.store.placement.pass_reads import (
    FROM_THE_START,
    InventoryChanges,
    RevisionKey,
    read_changes,
    read_revisions,
)
from schemas.api.explain import Explain
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

log = structlog.get_logger(__name__)
_MAX_KEPT: Final = 100  # parsed specs of about 14 KiB each; more in a pass that needs more
_PATIENCE_S: Final = 0.02
_MAX_PREEMPTIONS: Final = 8  # in a pass: each takes some 50 ms among 10,000 instances, and is written at its end
_MAX_NEW: Final = 256  # new instances placed by a step; more would lock its deployments' rows for long


class InventoryCache:
    """An `Inventory` and its `Holdings`, kept current by reading changes. For one reader at a time."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.holdings = Holdings()
        self.horizon = FROM_THE_START  # what older transactions wrote is known

    def copy(self) -> Self:
        """A copy for a reader that changes it. Not within a pass."""
        twin = type(self)()
        twin.inventory, twin.holdings, twin.horizon = self.inventory.copy(), self.holdings.copy(), self.horizon
        return twin

    async def refresh(self, connection: Any) -> None:
        """Applies changes. The connection must be in one REPEATABLE READ transaction."""
        self.take(await read_changes(connection, self.horizon))

    def take(self, changes: InventoryChanges) -> None:
        if changes.device_uuids:
            for instance, holding in self.holdings.replace(changes.device_uuids, changes.claims):
                if holding is None:
                    self.inventory.remove_load([instance])
                else:
                    self.inventory.upsert_load([holding.load(instance)])
        self.inventory.upsert_workers(changes.workers)
        self.inventory.remove_workers(changes.deleted_workers)
        self.inventory.upsert_devices(changes.devices)
        self.inventory.remove_devices(changes.orphaned_devices)
        self.horizon = changes.horizon


@dataclass(frozen=True, slots=True)
class RevisionAsk:
    """A revision with the ask of each of its instances."""

    spec: DeploymentSpec
    need: Need
    ask: Ask  # without the instance's name
    commits: Mapping[str, str] = field(default_factory=dict)  # of its models on the hub, as known so far

    @property
    def may_get_commits(self) -> bool:
        """Whether a start may yet report a commit."""
        models = (self.spec.model or "", *self.spec.serving.adapters.values())
        return not self.commits and any(model.startswith("hf:") for model in models)


class RevisionAsks:
    """A cache by revision, the least recently used forgotten first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[RevisionKey, RevisionAsk | ValueError] = OrderedDict()

    async def refresh(self, connection: Any, waiting: Sequence[PendingRow]) -> None:
        """Reads the revisions of these instances that are not kept."""
        wanted = {(row.deployment_uid, row.revision) for row in waiting}
        missing = wanted - self._kept.keys()
        missing |= {key for key in wanted - missing if self._may_get_commits(key)}
        if missing:
            for key, stored in (await read_revisions(connection, sorted(missing))).items():
                try:
                    self.put(key, *stored.parse(), stored.commits)
                except ValueError as error:
                    self._kept[key] = error
        for row in waiting:
            self._kept.move_to_end((row.deployment_uid, row.revision))
        while len(self._kept) > max(_MAX_KEPT, len(waiting)):
            self._kept.popitem(last=False)

    def put(self, key: RevisionKey, spec: DeploymentSpec, need: Need, commits: Mapping[str, str] | None = None) -> None:
        """Keeps a revision, or the reason why this version cannot run it."""
        try:
            engine = engine_for(spec)
            with suppress(RefusedFlagError):  # specs of an earlier version keep running; an apply refuses the flag
                engine.validate(spec)
            if retired := spec.retired_args:
                log.warning("args have no effect", deployment=key[0], revision=key[1], args=retired)
            ask = asks_for(spec, need, engine, instance="", deployment_uid=key[0])
            self._kept[key] = RevisionAsk(spec, need, ask, commits or {})
        except ValueError as error:
            self._kept[key] = error

    def _may_get_commits(self, key: RevisionKey) -> bool:
        kept = self._kept[key]
        return isinstance(kept, RevisionAsk) and kept.may_get_commits

    def of(self, row: PendingRow) -> RevisionAsk:
        """The revision of a pending instance. Raises ValueError if this version cannot run it."""
        kept = self._kept[row.deployment_uid, row.revision]
        if isinstance(kept, ValueError):
            raise kept
        return kept


@dataclass(frozen=True, slots=True)
class StillPending:
    """An instance that does not fit now, with the reason."""

    waiting: PendingRow
    decision: Unplaced
    victims: tuple[Holder, ...] = ()
    awaits_servers: bool = False  # capacity is reserved for it that servers hold, so its time for that runs
    promised: Destination | None = None  # the place that its victims leave, which is reserved for it


@dataclass(frozen=True, slots=True)
class NewInstance:
    """An instance that is about to be created, with its revision's spec and need."""

    waiting: PendingRow
    spec: DeploymentSpec
    need: Need
    commits: Mapping[str, str] = field(default_factory=dict)


class PlacementPasses:
    """Lives as long as one term."""

    def __init__(
        self,
        *,
        clock: Clock,
        metrics: Metrics,
        reserve: ReserveTimes = DEFAULT_RESERVE,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._clock = clock
        self._keys = keys
        self._reserve = reserve
        self._metrics = metrics
        self._cache = InventoryCache()
        self._revisions = RevisionAsks()
        self._lock = asyncio.Lock()
        self._arrivals = 0  # rises whenever an instance may have become pending
        self._ports: defaultdict[str, set[int]] = defaultdict(set)  # of gangs placed since the refresh, by host device
        self._cleared_at: int | None = None  # its value when a full pass began that left no instance pending
        self._started = 0.0

    @property
    def inventory(self) -> Inventory:
        """Claims, and the reservations of the current pass."""
        return self._cache.inventory

    @property
    def holdings(self) -> Holdings:
        """The claims of each instance as of the last refresh."""
        return self._cache.holdings

    def mark_backlog(self) -> None:
        """An instance may be pending: until a full pass has cleared the backlog, no new instance is placed directly."""
        self._arrivals += 1

    @asynccontextmanager
    async def one_pass(self) -> AsyncIterator[None]:
        """The inventory for one pass, its commits included; after a failure its reservations are taken back."""
        async with self._lock:
            self._started = self._clock.monotonic()
            self.inventory.begin_pass()
            try:
                yield
            except BaseException:
                self.inventory.rollback()  # the next refresh reads what was committed
                self._cleared_at = None
                raise

    @asynccontextmanager
    async def full_pass(self) -> AsyncIterator[list[PendingRow]]:
        """A pass over all pending instances. The caller adds those that stay pending to the list: the backlog."""
        async with self.one_pass():
            arrivals, backlog = self._arrivals, list[PendingRow]()
            yield backlog
            self._cleared_at = None if backlog else arrivals

    @asynccontextmanager
    async def place_new(self, new_instances: Sequence[NewInstance]) -> AsyncIterator[list[PlacedStart]]:
        """A pass for instances that are about to be created; an empty list if others are pending before them.

        It waits only for a short pass, such as one without pending instances.
        """
        starts: list[PlacedStart] = []
        async with AsyncExitStack() as stack:
            if self._no_backlog() and 0 < len(new_instances) <= _MAX_NEW:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await stack.enter_async_context(self.one_pass())
                    starts = self._decide_new(new_instances) if self._no_backlog() else starts
            yield starts

    def _no_backlog(self) -> bool:
        return self._cleared_at == self._arrivals

    def _decide_new(self, new_instances: Sequence[NewInstance]) -> list[PlacedStart]:
        for new in new_instances:
            self._revisions.put((new.waiting.deployment_uid, new.waiting.revision), new.spec, new.need, new.commits)
        decisions = self.decide([new.waiting for new in new_instances])
        return [decision for decision in decisions if isinstance(decision, PlacedStart)]

    async def refresh(self, connection: Any, waiting: Sequence[PendingRow]) -> None:
        """Reads changes, and the revisions of these instances. In one REPEATABLE READ transaction."""
        await self._cache.refresh(connection)
        self._ports.clear()
        await self._revisions.refresh(connection, waiting)

    async def check_starts(
        self, connection: Any, waiting: Sequence[PendingRow], settings: RestartSettings
    ) -> list[PendingRow]:
        """Marks those that preempt nothing since their start would fail. After `refresh`, in its transaction."""
        if not any(row.preempt for row in waiting):
            return list(waiting)
        return await check_starts(connection, waiting, lambda row: self._revisions.of(row).spec, self._keys, settings)

    def needs_holders(self, waiting: Iterable[PendingRow]) -> bool:
        """Whether any of them may preempt or get a reservation if it does not fit, for which holders must be read."""
        return any(may_reserve(row, self._reserve.after_s) for row in waiting)

    def decide(
        self,
        waiting: Sequence[PendingRow],
        holders: Holders | None = None,
        reserved: Sequence[PendingRow] = (),
    ) -> Generator[PlacedStart | StillPending, None, None]:
        """Decides on each instance in turn. An instance whose spec this version cannot run blocks no other.

        After many preemptions the last instances get no decision. A caller that stops early closes the generator.

        Args:
            waiting: in the order in which they are placed.
            holders: the instances with claims, where preemption or reservations are possible.
            reserved: instances for which capacity is reserved before all of these.
        """
        self.inventory.rollback()  # earlier decisions of this pass
        by_id = {row.id: row for row in waiting}
        impossible: list[StillPending] = []
        decisions = admit(
            self.inventory,
            self._pending(waiting, impossible),
            holders,
            reserve=self._reserve,
            reserved=self._asks(reserved),
            promised=self._pending([row for row in waiting if row.promised is not None], []),
            max_preemptions=_MAX_PREEMPTIONS,
        )
        with closing(decisions):
            for admission in decisions:
                row = by_id[admission.decision.instance]
                if isinstance(admission.decision, Placed):
                    yield self._start(row, admission.decision)
                else:
                    yield StillPending(
                        row, admission.decision, admission.victims, admission.awaits_servers, admission.promised
                    )
        yield from impossible

    def _pending(self, waiting: Iterable[PendingRow], impossible: list[StillPending]) -> Iterator[PendingInstance]:
        for row in waiting:
            try:
                yield row.pending_by(self._revisions.of(row).ask)
            except ValueError as error:
                if row.awaited:
                    continue  # it is explained once it is created
                impossible.append(StillPending(row, _impossible(row, error)))

    def _asks(self, waiting: Iterable[PendingRow]) -> list[Ask]:
        asks = []
        for row in waiting:
            with suppress(ValueError):  # this version cannot run its spec
                asks.append(row.ask_by(self._revisions.of(row).ask))
        return asks

    def _start(self, waiting: PendingRow, placed: Placed) -> PlacedStart:
        revision = self._revisions.of(waiting)
        gpus = self.inventory.gpus
        leader = self.inventory.worker(placed.worker_id).host
        gang = f"{waiting.id}/{waiting.epoch + 1}"
        port = self._rendezvous_port(gang, placed, leader) if len(placed.workers) > 1 else None
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
                    gang=gang,
                    rendezvous=port,
                    rank=rank,
                    leader=leader if len(placed.workers) > 1 else "",
                    need=revision.need,
                    commits=revision.commits,
                    builds=self.inventory.worker(placed.worker_id).engines or (),
                )
            )
        return PlacedStart(waiting, placed, tuple(payloads), port)

    def _rendezvous_port(self, gang: str, placed: Placed, leader: str) -> int:
        """A port that no other gang uses at the leader's address, where several agents may run."""
        taken = set[int]()
        for host in {placed.leading_host, *self.inventory.hosts_at(leader)}:
            taken |= self.holdings.rendezvous_ports(host) | self._ports[host]
        port = rendezvous_port(gang, taken)
        self._ports[placed.leading_host].add(port)
        return port

    def settle(self, starts: Sequence[PlacedStart], kept: Sequence[PlacedStart]) -> list[PlacedStart]:
        """Counts committed starts; removes those that lost a race from the inventory, and returns them."""
        done = {s.waiting.id for s in kept}
        lost = [s for s in starts if s.waiting.id not in done]
        for start in lost:
            self.inventory.unreserve(start.placed)
        elapsed = self._clock.monotonic() - self._started
        for start in kept:
            self._metrics.placement_seconds(start.waiting.waited_s + elapsed)
        self._metrics.placed("placed", len(kept))
        self._metrics.placed("lost", len(lost))
        return lost

    def count_unplaced(self, instances: Sequence[StillPending]) -> None:
        self._metrics.placed("unplaced", len(instances))


def _impossible(waiting: PendingRow, error: ValueError) -> Unplaced:
    """The instance stays pending until the spec changes, or an upgrade after a downgrade."""
    message = f"this version cannot run its spec: {error}"
    return Unplaced(waiting.id, Explain(workers=0, rejected={Reason.ENGINE_UNSUPPORTED: 1}, message=message))
