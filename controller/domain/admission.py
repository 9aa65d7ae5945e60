"""What admission reads: pending instances, and which instance holds which claims."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from controller.domain.placement import Ask, PlannedClaim


@dataclass(frozen=True, slots=True)
class Destination:
    """A place chosen beforehand."""

    workers: tuple[str, ...]  # names
    gpus: tuple[str, ...]  # UUIDs


@dataclass(frozen=True, slots=True)
class PendingInstance:
    """An instance in the admission queue."""

    ask: Ask
    priority: int = 0
    preempt: bool = False  # it may preempt lower-priority instances
    waited_s: float = 0.0  # since it became pending
    preempting: bool = False  # its preemption victims have not ended yet
    relocation_target: Ask | None = None  # for the one place that relocations free for it
    reserved_s: float | None = None  # since capacity that servers hold was first reserved for it
    queued_at: float = math.inf  # epoch seconds, from which its age counts; infinite: not created yet
    awaited: bool = False  # not created yet, since the outdated instance that it succeeds is still stopping
    promised: Destination | None = None  # the place that its preemption victims leave
    no_preemption: str = ""  # why it preempts nothing although it may

    def bound_for(self, to: Destination) -> Ask:
        """Its ask with a manual selection of that place."""
        return _bound_for(self.ask, to)


@dataclass(frozen=True, slots=True)
class RefusedStart:
    """A start that was refused by an agent, or by the hub for it."""

    code: str  # a reason code
    message: str
    worker: str  # name; empty: the worker is gone
    ago_s: float
    changed: bool  # since then its agent connected again or reported other devices, or the worker is gone


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A pending instance, as stored."""

    id: str
    deployment_uid: str
    deployment: str
    revision: int
    phase: str
    epoch: int
    waited_s: float
    message: str
    avoid_worker: str | None = None  # id, on which it failed too often in a row
    priority: int = 0
    preempt: bool = False
    preempting: bool = False  # its preemption victims have not ended yet
    destination: Destination | None = None  # the only place for a relocation's replacement
    relocation_target: Destination | None = None  # that relocations free for it
    reserved_s: float | None = None  # since capacity that servers hold was first reserved for it
    queued_at: float = math.inf
    awaited: bool = False  # not created yet, since the outdated instance that it succeeds is still stopping
    promised: Destination | None = None  # the place that its preemption victims leave
    failures: int = 0  # of its starts in a row
    refused: RefusedStart | None = None  # its last start, if it may preempt
    no_preemption: str = ""  # why it preempts nothing although it may

    def ask_by(self, ask: Ask) -> Ask:
        """Its ask, from the common ask of its revision."""
        avoid = frozenset({self.avoid_worker}) if self.avoid_worker else frozenset[str]()
        own = ask.for_instance(self.id, avoid)
        return own if self.destination is None else _bound_for(own, self.destination)

    def pending_by(self, ask: Ask) -> PendingInstance:
        """Its entry in the queue, from the common ask of its revision."""
        own = self.ask_by(ask)
        relocation_target = _bound_for(own, self.relocation_target) if self.relocation_target is not None else None
        return PendingInstance(
            own, self.priority, self.preempt, self.waited_s, self.preempting, relocation_target, self.reserved_s,
            self.queued_at, self.awaited, self.promised, self.no_preemption,
        )  # fmt: skip


def in_order(pending: Sequence[PendingRow], awaited: Sequence[PendingRow]) -> list[PendingRow]:
    """All instances in the order of placement. Awaited instances follow pending ones of their priority.

    `pending`: the replacements of relocations, then the others by priority and age.
    """
    if not awaited:
        return list(pending)

    return sorted([*pending, *awaited], key=lambda row: (row.destination is None, -row.priority))


def new_instance(id_: str, deployment_uid: str, deployment: str, revision: int) -> PendingRow:
    """The row of an instance that is to be created and needs only a place."""
    return PendingRow(
        id=id_,
        deployment_uid=deployment_uid,
        deployment=deployment,
        revision=revision,
        phase="pending",
        epoch=0,
        waited_s=0.0,
        message="",
    )


def _bound_for(ask: Ask, to: Destination) -> Ask:
    """The ask with a manual selection of that place: with the same checks, and only there."""
    otherwise = _bound_for(ask.otherwise, to) if ask.otherwise is not None else None
    return replace(ask, workers=() if to.gpus else to.workers, gpus=to.gpus, otherwise=otherwise)


class Demand(NamedTuple):
    """The demand of an instance on one worker. `memory_mib`: of each GPU."""

    gpus: int
    memory_mib: int
    exclusive: bool
    host_memory_mib: int
    cpu_milli: int


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """The places where one instance holds claims."""

    instance: str
    deployment_uid: str
    workers: tuple[str, ...]  # ids
    gpus: tuple[str, ...]  # UUIDs
    demand: Demand | None = None  # of one worker, from the ledger; None for a reservation


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A committed claim."""

    deployment_uid: str
    worker_id: str
    gpu: bool  # else the host device
    claim: PlannedClaim
    rendezvous_port: int | None = None  # at which the ranks of a gang meet; only on the leader's host device


@dataclass(frozen=True, slots=True)
class Holding:
    """All claims of one instance; never empty."""

    by_device: Mapping[str, HeldClaim]
    workers: frozenset[str]  # ids
    claims: tuple[PlannedClaim, ...]

    def load(self, instance: str) -> InstanceLoad:
        """The load, with the demand on the leader's worker, which represents all workers."""
        leading = [held for held in self.by_device.values() if not held.claim.rank]
        gpus, host = [h.claim for h in leading if h.gpu], [h.claim for h in leading if not h.gpu]
        demand = Demand(
            gpus=len(gpus),
            memory_mib=max((c.memory_mib for c in gpus), default=0),
            exclusive=any(c.exclusive for c in gpus),
            host_memory_mib=sum(c.memory_mib for c in host),
            cpu_milli=sum(c.cpu_milli for c in host),
        )
        on = tuple(uuid for uuid, held in self.by_device.items() if held.gpu)
        uid = next(iter(self.by_device.values())).deployment_uid
        return InstanceLoad(instance, uid, tuple(sorted(self.workers)), on, demand)


class Holdings:
    """The claims of the ledger as of the last `replace`."""

    def __init__(self, of: Mapping[str, Holding] | None = None) -> None:
        self._of = dict(of or {})
        self._on_device: defaultdict[str, set[str]] = defaultdict(set)
        for instance, holding in self._of.items():
            for uuid in holding.by_device:
                self._on_device[uuid].add(instance)

    def copy(self) -> Self:
        """An independent copy."""
        return type(self)(self._of)

    def get(self, instance: str) -> Holding | None:
        return self._of.get(instance)

    def rendezvous_ports(self, host: str) -> set[int]:
        """The ports at which gangs meet on this host device."""
        held = (self._of[instance].by_device[host] for instance in self._on_device.get(host, ()))
        return {claim.rendezvous_port for claim in held if claim.rendezvous_port is not None}

    def replace(
        self, devices: Collection[str], claims: Iterable[tuple[str, HeldClaim]]
    ) -> Iterator[tuple[str, Holding | None]]:
        """Replaces all claims on `devices` (UUIDs). Yields each changed instance with its new holding."""
        fresh: defaultdict[str, dict[str, HeldClaim]] = defaultdict(dict)
        for instance, held in claims:
            fresh[instance][held.claim.device] = held
        changed = set(devices)
        known = {instance for uuid in changed for instance in self._on_device.get(uuid, ())}
        for instance in known | fresh.keys():
            old = self._of.get(instance)
            before = old.by_device if old is not None else {}
            elsewhere = {uuid: held for uuid, held in before.items() if uuid not in changed}
            now = elsewhere | fresh.get(instance, {})
            if now != before:
                yield instance, self._set(instance, now)

    def _set(self, instance: str, now: Mapping[str, HeldClaim]) -> Holding | None:
        old = self._of.pop(instance, None)
        for uuid in old.by_device if old is not None else ():
            self._on_device[uuid].discard(instance)
        if not now:
            return None
        for uuid in now:
            self._on_device[uuid].add(instance)
        in_order = dict(sorted(now.items()))  # equal ledgers give equal plans, whatever the order of reads
        workers = frozenset(held.worker_id for held in now.values())
        self._of[instance] = Holding(in_order, workers, tuple(held.claim for held in in_order.values()))
        return self._of[instance]


@dataclass(frozen=True, slots=True)
class Holder:
    """An instance that holds claims and may be preempted."""

    instance: str  # id
    priority: int
    queued_at: float  # epoch seconds, from which its age in the queue counts
    workers: frozenset[str]  # ids
    claims: tuple[PlannedClaim, ...]  # on GPUs and hosts
    epoch: int = 0
    task: bool = False  # `restart: never` or `on_failure`: preemption loses its work
    movable: bool = True  # movable instances are preempted before immovable ones of their priority
    lost_s: float = 0.0  # seconds of work that preemption loses; 0 for a server
    protected: bool = False  # younger than its `minimum_runtime`, so it is not preempted yet
    serves: bool = False  # requests reach it, so it does not end by itself, whatever its `restart`

    @property
    def ends_by_itself(self) -> bool:
        """Whether its capacity may be awaited: it is a task, and serves no requests."""
        return self.task and not self.serves

    @property
    def gpus(self) -> int:
        """Number of claims on GPUs."""
        return len(self.claims) - len(self.workers)  # each worker has one claim on its host device

    @property
    def level(self) -> int:
        """The order of preemption: by priority, then movable instances first."""
        return 2 * self.priority + (not self.movable)

    @property
    def weight(self) -> int:
        """Its weight among victims: a task counts as two servers."""
        return 2 if self.task else 1


@dataclass(frozen=True, slots=True)
class Holders:
    """Instances with claims. Those that are being relocated are also staying."""

    staying: tuple[Holder, ...] = ()
    leaving: tuple[Holder, ...] = ()
    relocating: tuple[Holder, ...] = ()
