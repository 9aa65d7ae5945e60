"""What is asked of the scheduler, what it looks at, and what it answers. Sizes in MiB, CPU in thousandths of a core."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuward.schemas.objects import Explain
from gpuward.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Need:
    """What one copy of a model needs, as the analysis found it; stored with the revision."""

    memory_mib: int | None  # on GPUs, in all; None: cannot be known, so whole GPUs are taken
    host_memory_mib: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)  # what memory_mib is made of
    heads: int | None = None  # attention heads; tensor parallelism must divide them
    vocab: int | None = None  # vocabulary; likewise
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an engine runs on; the same table for automatic choice, manual choice and plan. Empty: anything."""

    os: frozenset[str] = frozenset()
    arch: frozenset[str] = frozenset()
    min_driver: tuple[int, ...] = ()  # such as (525,)
    min_compute_capability: tuple[int, int] | None = None
    simulated_only: bool = False  # runs on simulated hosts and on hosts without need of GPUs


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to spread an instance: `gpus` GPUs of one worker, each with `memory_mib` or, exclusive, whole."""

    gpus: int
    memory_mib: int  # per GPU; of an exclusive one the least that it must have
    exclusive: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """What one instance asks. Layouts in order of preference; the first that fits anywhere is taken.

    Either all of them are on GPUs or the only one is on none, so that what is asked of a platform is the same for all.
    """

    instance: str
    deployment_uid: str
    layouts: tuple[Layout, ...]
    refused: tuple[Reason, ...] = ()  # why layouts that were thought of are not among them (heads, vocabulary)
    host_memory_mib: int = 0
    cpu_milli: int = 0
    strategy: Literal["pack", "spread", "least_fragmentation"] = "pack"
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[str, ...] = ()  # manual: names; only these, and all of them must be ready
    gpus: tuple[str, ...] = ()  # manual: UUID or worker:index
    compatibility: Compatibility = Compatibility()
    avoid_workers: frozenset[str] = frozenset()  # worker ids, tried last (it failed there)

    def shape(self) -> tuple[object, ...]:
        """Equal for asks that any inventory answers alike; `spread` counts the deployment's own instances."""
        return (
            self.layouts, self.refused, self.host_memory_mib, self.cpu_milli, self.strategy,
            tuple(sorted(self.labels.items())), self.workers, self.gpus, self.compatibility, self.avoid_workers,
            self.deployment_uid if self.strategy == "spread" else None,
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


@dataclass(frozen=True, slots=True)
class PlannedClaim:
    """One claim to be committed."""

    device: str
    memory_mib: int
    cpu_milli: int
    exclusive: bool
    position: int  # order in which the process sees its GPUs; the host claim is last


@dataclass(frozen=True, slots=True)
class Placed:
    """An ask that fits, with its claims: the GPUs and always one on the host device."""

    instance: str
    worker_id: str
    claims: tuple[PlannedClaim, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """An ask that does not fit now, with the reasons counted."""

    instance: str
    explain: Explain


Decision = Placed | Unplaced
