"""What is asked of the scheduler, what it looks at, and what it answers. Sizes in MiB, CPU in thousandths of a core."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from schemas.api.explain import Explain
from schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Share:
    """What a model needs in one parallel layout: tp x pp x dp GPUs, each of which must hold `memory_mib`."""

    tp: int
    pp: int
    dp: int
    memory_mib: int  # of the GPU that holds most
    parts: Mapping[str, int] = field(default_factory=dict)  # MiB that memory_mib is made of
    host_memory_mib: int = 0  # of the whole instance
    sequences: int | None = None  # at once that it allows for; None: as the need says

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class Need:
    """What one copy of a model needs, as the analysis found it; stored with the revision.

    Where the engine knows how it splits a model there are `shares`, one for each layout that it can run, best first,
    and `refused` says why others are not among them. Else `memory_mib` in all is shared out evenly.
    """

    memory_mib: int | None  # on GPUs, in all; None: cannot be known, so whole GPUs are taken
    host_memory_mib: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)  # what memory_mib is made of
    heads: int | None = None  # attention heads; tensor parallelism must divide them
    kv_heads: int | None = None  # of keys and values; they must divide, or be divided by, its degree
    vocab: int | None = None  # vocabulary; as heads, where the engine demands it
    vision_heads: int | None = None  # of the vision tower; as heads
    notes: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    refused: tuple[Reason, ...] = ()  # why no host could help: the engine cannot run this model at all
    compute_capability: tuple[int, int] | None = None  # least that the weights' types demand, above the engine's own
    context: int | None = None  # tokens of a sequence that the shares allow for
    sequences: int | None = None  # at once that they allow for, at best
    by_engine: "tuple[tuple[str, Need], ...]" = ()  # of engine auto: what each that can run it needs, best first

    def share_of(self, layout: "Layout") -> Share | None:
        """What was measured for a layout; None: nothing was.

        One split may have been measured for more and for fewer requests at once; the memory tells which it was.
        """
        same = [s for s in self.shares if (s.tp, s.pp, s.dp) == (layout.tp, layout.pp, layout.dp)]
        exact = (s for s in same if s.memory_mib == layout.memory_mib)
        return next(exact, same[0] if same else None)

    def sequences_of(self, layout: "Layout") -> int | None:
        """How many requests at once a layout allows for."""
        share = self.share_of(layout)
        return self.sequences if share is None else share.sequences or self.sequences


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an engine runs on; the same table for automatic choice, manual choice and plan. Empty: anything."""

    os: frozenset[str] = frozenset()
    arch: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    min_driver: tuple[int, ...] = ()  # such as (525,)
    min_compute_capability: tuple[int, int] | None = None
    simulated_only: bool = False  # runs on simulated hosts and on hosts without need of GPUs
    engine: str = ""  # that the host must have installed, where it tells which it has


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spread an instance: `gpus` GPUs in all, each with `memory_mib` or, exclusive, whole.

    Over several workers it is a gang: each of them gives `gpus / workers`, and the host's share of memory and CPU. Only
    GPUs named by hand may be spread unevenly: there the layout is the one of as many workers as they stand in.
    """

    gpus: int
    memory_mib: int  # per GPU; of an exclusive one the least that it must have
    exclusive: bool
    workers: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """What one instance asks. Layouts in order of preference; the first that fits anywhere is taken.

    Either all of them are on GPUs or the only one is on none, so that what is asked of a platform is the same for all.
    """

    instance: str
    deployment_uid: str
    layouts: tuple[Layout, ...]
    refused: tuple[Reason, ...] = ()  # why layouts that were thought of are not among them (heads, vocabulary)
    tried: tuple[tuple[Layout, Reason], ...] = ()  # those layouts, with what they would have needed
    host_memory_mib: int = 0
    cpu_milli: int = 0
    strategy: Literal["pack", "spread", "least_fragmentation"] = "pack"
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[str, ...] = ()  # manual: names; only these, and all of them must be ready
    gpus: tuple[str, ...] = ()  # manual: UUID or worker:index
    compatibility: Compatibility = Compatibility()
    avoid_workers: frozenset[str] = frozenset()  # worker ids, tried last (it failed there)
    gpu_models: tuple[str, ...] = ()  # that will do; empty: any
    engine: str = ""
    otherwise: "Ask | None" = None  # the same instance by the next best engine, where this one fits nowhere

    def for_instance(self, instance: str, avoid_workers: frozenset[str] = frozenset()) -> "Ask":
        """The ask of another instance of the same revision; `otherwise` included."""
        otherwise = None if self.otherwise is None else self.otherwise.for_instance(instance, avoid_workers)
        return replace(self, instance=instance, avoid_workers=avoid_workers, otherwise=otherwise)

    def shape(self) -> tuple[object, ...]:
        """Equal for asks that any inventory answers alike; `spread` counts the deployment's own instances."""
        return (
            self.layouts, self.refused, self.tried, self.host_memory_mib, self.cpu_milli, self.strategy,
            tuple(sorted(self.labels.items())), self.workers, self.gpus, self.compatibility, self.avoid_workers,
            self.deployment_uid if self.strategy == "spread" else None, self.gpu_models, self.engine,
            self.otherwise.shape() if self.otherwise else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker as the scheduler sees it."""

    id: str
    name: str
    ready: bool  # phase ready, known GPUs, fresh, not deleted
    schedulable: bool  # neither cordoned nor draining
    os: str
    arch: str
    driver: str | None
    simulated: bool
    labels: Mapping[str, str]
    engines: frozenset[str] | None = None  # installed there; None: not known, so not judged by
    host: str = ""  # name or address at which other workers reach it; that of its proxy


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device as the ledger knows it. kind `host`: memory and CPU of the worker itself."""

    uuid: str
    worker_id: str
    kind: Literal["gpu", "host"]
    index: int
    model: str
    compute_capability: tuple[int, int] | None
    memory_mib: int
    cpu_milli: int
    claimed_mib: int
    claimed_cpu_milli: int
    claims: int
    exclusive_claims: int
    healthy: bool  # present, health ok
    mig_mode: bool
    vendor: str = "nvidia"  # nvidia | amd | apple; "" of a host
    reserved_mib: int = 0  # kept back by the host's operator; only who takes a GPU whole gets it
    foreign_mib: int = 0  # in use, as measured, beyond what claims explain; little of it does not count


@dataclass(frozen=True, slots=True)
class PlannedClaim:
    """One claim to be committed."""

    device: str
    memory_mib: int
    cpu_milli: int
    exclusive: bool
    position: int  # order in which the process sees its GPUs; the host claim is last
    rank: int = 0  # of the gang's process that uses it; the leader is rank 0


@dataclass(frozen=True, slots=True)
class Placed:
    """An ask that fits, with its claims: the GPUs of each rank, and one on each rank's host device."""

    instance: str
    workers: tuple[str, ...]  # ids by rank: the leader first
    claims: tuple[PlannedClaim, ...]
    layout: Layout
    engine: str = ""

    @property
    def worker_id(self) -> str:
        """The leader's worker."""
        return self.workers[0]

    def of_rank(self, rank: int) -> tuple[PlannedClaim, ...]:
        """The claims of one rank, the host's last."""
        return tuple(claim for claim in self.claims if claim.rank == rank)


@dataclass(frozen=True, slots=True)
class Unplaced:
    """An ask that does not fit now, with the reasons counted."""

    instance: str
    explain: Explain
    reason: Reason | None = None  # where it is another than the explanation's figures say


Decision = Placed | Unplaced
