"""Which instance holds which claims. `Holdings` is kept current from the claims on the devices that changed."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from controller.domain.placement import PlannedClaim


class Demand(NamedTuple):
    """What an instance takes of one worker: GPUs, memory of each or the whole GPU, and the host's memory and CPU."""

    gpus: int
    memory_mib: int
    exclusive: bool
    host_memory_mib: int
    cpu_milli: int


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """Where one instance holds claims."""

    instance: str
    deployment_uid: str
    workers: tuple[str, ...]  # ids
    gpus: tuple[str, ...]  # UUIDs
    demand: Demand | None = None  # of one worker, from the ledger; None for a reservation


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A committed claim, with its deployment, its worker and the kind of its device.

    `rendezvous_port`: at which the ranks of a gang meet, on the claim of its leader's host.
    """

    deployment_uid: str
    worker_id: str
    gpu: bool
    claim: PlannedClaim
    rendezvous_port: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """All claims of one instance; never empty."""

    by_device: Mapping[str, HeldClaim]
    workers: frozenset[str]  # ids
    claims: tuple[PlannedClaim, ...]

    def load(self, instance: str) -> InstanceLoad:
        """Where the instance runs. Its demand is that of its leader's worker, which represents all of its workers."""
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
        """The same claims, apart from these."""
        return type(self)(self._of)

    def get(self, instance: str) -> Holding | None:
        """The holding of this instance; None if it holds nothing."""
        return self._of.get(instance)

    def rendezvous_ports(self, host: str) -> set[int]:
        """The ports at which gangs meet on this host device."""
        held = (self._of[instance].by_device[host] for instance in self._on_device.get(host, ()))
        return {one.rendezvous_port for one in held if one.rendezvous_port is not None}

    def replace(
        self, devices: Collection[str], claims: Iterable[tuple[str, HeldClaim]]
    ) -> Iterator[tuple[str, Holding | None]]:
        """Replaces all claims on `devices`. Yields each instance whose holding changed, with its new holding.

        Args:
            devices: UUIDs of the devices that changed.
            claims: all claims on them now, each with its instance.
        """
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
        in_order = dict(sorted(now.items()))  # whatever was read first, so that equal ledgers give equal plans
        workers = frozenset(held.worker_id for held in now.values())
        self._of[instance] = Holding(in_order, workers, tuple(held.claim for held in in_order.values()))
        return self._of[instance]


@dataclass(frozen=True, slots=True)
class Holder:
    """An instance that holds claims and may be preempted.

    Attributes:
        instance: its id.
        priority: of its deployment.
        queued_at: seconds since the epoch, from which its age in the queue counts.
        workers: ids.
        claims: on GPUs and hosts.
        epoch: of the claims.
        task: `restart: never` or `on_failure`: it loses its work if it is preempted.
        movable: of its deployment. Others of the same priority are preempted first.
        lost_s: seconds of work that end with it; 0 for a server.
        protected: younger than its `minimum_runtime`, so it is not preempted yet.
        serves: requests reach it, so it does not end by itself, whatever its `restart`.
    """

    instance: str
    priority: int
    queued_at: float
    workers: frozenset[str]
    claims: tuple[PlannedClaim, ...]
    epoch: int = 0
    task: bool = False
    movable: bool = True
    lost_s: float = 0.0
    protected: bool = False
    serves: bool = False

    @property
    def ends_by_itself(self) -> bool:
        """Whether its capacity may be awaited: it is a task, and serves no requests."""
        return self.task and not self.serves

    @property
    def gpus(self) -> int:
        """Number of claims on GPUs: all claims but the one on each host."""
        return len(self.claims) - len(self.workers)

    @property
    def level(self) -> int:
        """The order of preemption: by priority, and of equal ones the movable first."""
        return 2 * self.priority + (not self.movable)

    @property
    def weight(self) -> int:
        """What it counts among victims: a task as much as two servers."""
        return 2 if self.task else 1


@dataclass(frozen=True, slots=True)
class Holders:
    """Instances with claims: those that stay, those of them that are being relocated, and those that are leaving."""

    staying: tuple[Holder, ...] = ()
    leaving: tuple[Holder, ...] = ()
    relocating: tuple[Holder, ...] = ()
