"""The scheduler's input and output: needs, asks, workers, devices, decisions.

Sizes are in MiB, CPU in thousandths of a core.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final, Literal

from schemas.api.explain import Explain
from schemas.api.needs import NeedView
from schemas.manifest.resources import CapabilityBound, Resources
from schemas.placement_reasons import Reason


@dataclass(frozen=True, slots=True)
class Share:
    """The need of a model in one parallel layout: tp x pp x dp GPUs with `memory_mib` each."""

    tp: int
    pp: int
    dp: int
    memory_mib: int  # of the GPU with the largest part
    parts: Mapping[str, int] = field(default_factory=dict)  # memory_mib by part
    host_memory_mib: int = 0  # of the instance
    sequences: int | None = None  # concurrent sequences that it allows; None: as in the need
    context: int | None = None  # tokens of a sequence that it allows; None: as in the need
    least_mib: int = 0  # the minimum for a start with one sequence; 0: unknown
    # Bytes of a cache block, of which each running sequence needs one; 0: blocks do not bound sequences.
    block_bytes: int = 0

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def cache_mib(self) -> int:
        """Memory for the cache: `memory_mib` without the other parts."""
        return self.memory_mib - sum(size for part, size in self.parts.items() if part != "cache")


@dataclass(frozen=True, slots=True)
class Need:
    """The need of one replica of a model, by its analysis; stored with the revision.

    If the engine knows how it splits a model, `shares` has an entry for each layout that it can run, best first, and
    `refused` the reasons against other layouts. Otherwise `memory_mib` is divided evenly.
    """

    memory_mib: int | None  # total on GPUs; None: unknown, so GPUs are claimed exclusively
    host_memory_mib: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)  # memory_mib by part
    heads: int | None = None  # attention heads; tensor parallelism must divide them
    kv_heads: int | None = None  # of keys and values; they must divide, or be divided by, its degree
    vocab: int | None = None  # vocabulary; as heads, if the engine requires it
    vision_heads: int | None = None  # of the vision tower; as heads
    notes: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    refused: tuple[Reason, ...] = ()  # why the engine cannot run this model on any host
    compute_capability: tuple[int, int] | None = None  # minimum for the dtypes of the weights
    context: int | None = None  # tokens of a sequence that the shares allow
    sequences: int | None = None  # most concurrent sequences that they allow
    by_engine: "tuple[tuple[str, Need], ...]" = ()  # of engine auto: the need with each usable engine, best first

    def share_of(self, layout: "Layout") -> Share | None:
        """The measured share of a layout; None if it was not measured."""
        # One split may have shares for different numbers of requests, which their memory identifies.
        same = [s for s in self.shares if (s.tp, s.pp, s.dp) == (layout.tp, layout.pp, layout.dp)]
        exact = (s for s in same if s.memory_mib == layout.memory_mib)
        return next(exact, same[0] if same else None)

    def sequences_of(self, layout: "Layout") -> int | None:
        share = self.share_of(layout)
        return self.sequences if share is None else share.sequences or self.sequences

    def context_of(self, layout: "Layout") -> int | None:
        share = self.share_of(layout)
        return self.context if share is None else share.context or self.context


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The hosts on which an engine runs, for automatic choice, manual choice and plan. Empty fields allow any."""

    os: frozenset[str] = frozenset()
    arch: frozenset[str] = frozenset()
    vendors: frozenset[str] = frozenset()
    min_driver: tuple[int, ...] = ()  # such as (525,)
    min_compute_capability: tuple[int, int] | None = None
    simulated_only: bool = False  # runs on simulated hosts, and without GPUs on any
    engine: str = ""  # that must be installed, if the host reports its engines
    without_gpu: str = ""  # the name by which the host reports a build that cannot use GPUs
    runtime: Literal["process", "docker"] = "process"

    def in_container(self) -> "Compatibility":
        """The compatibility in a container: the image has the engine; Linux and GPUs of NVIDIA only."""
        return replace(
            self, runtime="docker", engine="", without_gpu="", os=frozenset({"linux"}), vendors=frozenset({"nvidia"})
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to spread an instance over `gpus` GPUs, with `memory_mib` of each, or exclusively.

    Over several workers it is a gang: each worker gives `gpus / workers`, and the host's memory and CPU. Only GPUs
    selected by name may be spread unevenly, over the workers to which they belong.
    """

    gpus: int
    memory_mib: int  # per GPU; the minimum size of an exclusive one
    exclusive: bool
    workers: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1


# `auto` packs, but keeps a deployment's instances on different GPUs if it can. Only `pack` never does that.
Strategy = Literal["auto", "pack", "spread", "least_fragmentation"]


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of one instance for a place. Of its layouts, the first that fits anywhere is used.

    Either all layouts use GPUs or the only layout uses none, so the platform requirements are the same for all.
    """

    instance: str
    deployment_uid: str
    layouts: tuple[Layout, ...]
    refused: tuple[Reason, ...] = ()  # why other layouts are excluded (heads, vocabulary)
    tried: tuple[tuple[Layout, Reason], ...] = ()  # excluded layouts with their needs
    host_memory_mib: int = 0
    cpu_milli: int = 0
    strategy: Strategy = "pack"
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[str, ...] = ()  # manual: names; only these
    gpus: tuple[str, ...] = ()  # manual: UUID or worker:index; only these
    all_workers: bool = False  # the instance takes all named workers; otherwise they are a pool
    all_gpus: bool = False  # the instance takes all named GPUs; otherwise they are a pool
    compatibility: Compatibility = Compatibility()
    avoid_workers: frozenset[str] = frozenset()  # worker ids to try last, since it failed there
    gpu_models: tuple[str, ...] = ()  # parts of the names of accepted models; empty: any
    min_gpu_mib: int = 0  # least size of each GPU
    capability_bounds: tuple[CapabilityBound, ...] = ()  # in addition to the engine's minimum
    engine: str = ""
    otherwise: "Ask | None" = None  # with the next best engine, used if this ask fits nowhere

    def for_instance(self, instance: str, avoid_workers: frozenset[str] = frozenset()) -> "Ask":
        """The ask of another instance of the same revision."""
        otherwise = None if self.otherwise is None else self.otherwise.for_instance(instance, avoid_workers)
        return replace(self, instance=instance, avoid_workers=avoid_workers, otherwise=otherwise)

    @property
    def keeps_apart(self) -> bool:
        """Whether it shares a GPU with an instance of its deployment only as a last resort."""
        return self.strategy != "pack" and bool(self.deployment_uid)

    def shape(self) -> tuple[object, ...]:
        """Equal for asks with the same decision on any inventory without instances of their deployments."""
        return (
            self.layouts, self.refused, self.tried, self.host_memory_mib, self.cpu_milli, self.strategy,
            tuple(sorted(self.labels.items())), self.workers, self.gpus, self.all_workers, self.all_gpus,
            self.compatibility, self.avoid_workers, self.deployment_uid if self.strategy == "spread" else None,
            self.gpu_models, self.min_gpu_mib, self.capability_bounds, self.engine,
            self.otherwise.shape() if self.otherwise else None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """A worker's Docker engine. `reason`: why it is not usable, or not with GPUs."""

    usable: bool
    gpus: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlacementWorker:
    """A worker, for the scheduler."""

    id: str
    name: str
    ready: bool  # phase ready, known GPUs, fresh, not deleted
    schedulable: bool  # neither cordoned nor draining
    os: str
    arch: str
    driver: str | None
    simulated: bool
    labels: Mapping[str, str]
    engines: frozenset[str] | None = None  # installed there; None: unknown, so no criterion
    host: str = ""  # name or address of its proxy, for other workers
    disk_full: bool = False  # no space for models or engines
    containers: ContainerRuntime | None = None  # None: it reports none


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device in the ledger. Kind `host`: memory and CPU of the worker itself."""

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
    reserved_mib: int = 0  # reserved by the host's operator; only exclusive claims get it
    foreign_mib: int = 0  # measured use without a claim, above a tolerance
    parent: str | None = None  # the GPU of which it is a MIG slice
    cordoned: bool = False  # by an operator: no new claims


@dataclass(frozen=True, slots=True)
class PlannedClaim:
    """A claim to commit."""

    device: str
    memory_mib: int
    cpu_milli: int
    exclusive: bool
    position: int  # order in which the process sees its GPUs; the host claim is last
    rank: int = 0  # of the gang's process that uses it


@dataclass(frozen=True, slots=True)
class Placed:
    """An ask that fits. Each rank claims its GPUs, and its host device last."""

    instance: str
    workers: tuple[str, ...]  # ids by rank: the leader first
    claims: tuple[PlannedClaim, ...]
    layout: Layout
    engine: str = ""

    @property
    def leading_host(self) -> str:
        return self.of_rank(0)[-1].device

    @property
    def worker_id(self) -> str:
        """The leader's."""
        return self.workers[0]

    def of_rank(self, rank: int) -> tuple[PlannedClaim, ...]:
        return tuple(claim for claim in self.claims if claim.rank == rank)


@dataclass(frozen=True, slots=True)
class Unplaced:
    """An ask that does not fit now."""

    instance: str
    explain: Explain
    reason: Reason | None = None  # if the figures of `explain` do not show it


Decision = Placed | Unplaced


@dataclass(frozen=True, slots=True)
class NeedError:
    """Why a revision's need is unknown. Without `retryable` it stays until the spec changes."""

    message: str
    retryable: bool
    attempts: int
    retry_at: datetime | None
    reason: str = "metadata_unknown"


_TYPED: Final = {"notes", "shares", "refused", "compute_capability", "by_engine"}
_SHARE: Final = tuple(f.name for f in fields(Share))
_PLAIN: Final = tuple(f.name for f in fields(Need) if f.name not in _TYPED)


def need_to_json(need: Need) -> dict[str, Any]:
    return asdict(need)


def need_from_json(value: dict[str, Any]) -> Need:
    """Reads the need of any version: missing fields have their defaults."""
    capability = value.get("compute_capability")
    stored = {name: value[name] for name in _PLAIN if name in value}
    return Need(
        **stored,
        notes=tuple(value["notes"]),
        shares=tuple(_share_from_json(share) for share in value.get("shares", ())),
        refused=tuple(Reason(reason) for reason in value.get("refused", ())),
        compute_capability=(capability[0], capability[1]) if capability else None,
        by_engine=tuple((name, need_from_json(need)) for name, need in value.get("by_engine", ())),
    )


def _share_from_json(value: dict[str, Any]) -> Share:
    return Share(**{name: value[name] for name in _SHARE if name in value})


def need_error_to_json(error: NeedError) -> dict[str, Any]:
    return asdict(error) | {"retry_at": error.retry_at.isoformat() if error.retry_at else None}


def need_error_from_json(value: dict[str, Any]) -> NeedError:
    """Reads the error of any version: missing fields have their defaults."""
    retry_at = value["retry_at"]
    error = NeedError(**{f.name: value[f.name] for f in fields(NeedError) if f.name in value})
    return replace(error, retry_at=datetime.fromisoformat(retry_at) if retry_at else None)


def need_view(need: Need, resources: Resources, engine: str | None = None, layout: Layout | None = None) -> NeedView:
    """The need per GPU of a layout; in total if no layout is chosen or the engine did not measure it.

    If the need is unknown, the memory per GPU by the spec.
    """
    own = dict(need.by_engine).get(engine or "", need)
    share = own.share_of(layout) if layout is not None else None
    if share is None and own.memory_mib is None:
        share = _stated(resources)
    return NeedView(
        memory_mib=own.memory_mib if share is None else share.memory_mib,
        host_memory_mib=own.host_memory_mib if share is None else share.host_memory_mib or own.host_memory_mib,
        parts=dict(own.parts if share is None else share.parts),
        per_gpu=share is not None,
        context=own.context if layout is None else own.context_of(layout),
        sequences=own.sequences if layout is None else own.sequences_of(layout),
        notes=list(own.notes),
    )


def _stated(resources: Resources) -> Share | None:
    if resources.gpus == 0:
        return Share(1, 1, 1, 0)
    return Share(1, 1, 1, resources.gpu_memory) if isinstance(resources.gpu_memory, int) else None
