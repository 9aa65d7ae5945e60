"""One deployment with all that concerns it, as read at one moment: all that the decision looks at. Frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from controller.domain.phases import InstancePhase
from controller.domain.placement import Layout, Need
from schemas.manifest.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class NeedError:
    """Why a revision's need is not known. A terminal one waits for a changed spec."""

    message: str
    retryable: bool
    attempts: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """An immutable spec and what was found out about it."""

    generation: int
    spec: DeploymentSpec
    input_hash: str
    created_at: datetime
    need: Need | None = None
    need_error: NeedError | None = None


@dataclass(frozen=True, slots=True)
class IntentFacts:
    """A limit on the wanted replicas."""

    source: str
    max_replicas: int
    reason: str
    instances: tuple[str, ...] = ()  # that shall go first


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A claim of an instance."""

    device: str
    worker_id: str
    kind: Literal["gpu", "host"]
    epoch: int
    rank: int
    memory_mib: int
    cpu_milli: int
    exclusive: bool
    position: int
    healthy: bool = True  # the device is present and well
    device_mib: int = 0  # memory of the whole device
    device_claimed_mib: int = 0  # of it, by this claim and all others


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the agent last said of a process."""

    epoch: int
    rank: int
    worker_id: str
    state: Literal["starting", "running", "unhealthy", "stopping", "exited"]
    reason: str | None
    exit_code: int | None
    message: str


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """An order and what became of it. `sent`: it may have reached the agent."""

    id: int
    epoch: int
    rank: int
    verb: Literal["start", "stop"]
    worker_id: str
    state: Literal["open", "accepted", "refused", "withdrawn"]
    sent: bool
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A worker that holds claims of this deployment, as far as its instances must know it."""

    id: str
    name: str
    phase: Literal["joining", "ready", "unreachable", "lost"]
    reason: str
    draining: bool
    deleted: bool
    confirmed_dead: bool
    fence_until: datetime | None


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """One replica."""

    id: str
    revision: int
    phase: InstancePhase
    phase_since: datetime
    reason: str
    message: str
    epoch: int
    restarts: int
    failures: int
    not_before: datetime | None
    stop_reason: str | None
    replaces: str | None
    created_at: datetime
    engine: str = ""  # that placement chose; empty: its spec leaves no choice
    layout: Layout | None = None  # likewise
    pushed_out_for: str | None = None  # the instance that waits for its room
    claims: tuple[ClaimFacts, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    commands: tuple[CommandFacts, ...] = ()

    def process(self, rank: int = 0) -> ProcessFacts | None:
        """The present epoch's process of that rank, where an agent has reported it."""
        return next((p for p in self.processes if p.epoch == self.epoch and p.rank == rank), None)

    def command(self, verb: str, rank: int = 0) -> CommandFacts | None:
        """The present epoch's order of that verb."""
        return next((c for c in self.commands if c.epoch == self.epoch and c.rank == rank and c.verb == verb), None)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that hold claims."""
        return tuple(sorted({c.rank for c in self.claims}))

    def host_of(self, rank: int) -> str | None:
        """The worker on which that rank has its claims."""
        return next((c.worker_id for c in self.claims if c.rank == rank), None)


@dataclass(frozen=True, slots=True)
class RelocationFacts:
    """A move under way: `instance`, at `epoch`, goes as soon as `copy` runs; empty: there is none yet."""

    id: int
    instance: str
    epoch: int
    to: str  # names of the workers, for people
    copy: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """A deployment, its newest revision and every revision that an instance still runs, its instances, their hosts."""

    uid: str
    name: str
    generation: int
    revision: int
    version: int
    spec: DeploymentSpec
    created_at: datetime
    deleted_at: datetime | None
    phase: str
    reason: str
    message: str
    ready: int
    observed_generation: int
    conditions: tuple[Mapping[str, Any], ...]
    now: datetime  # the database's clock at the read
    revisions: Mapping[int, RevisionFacts]
    intents: tuple[IntentFacts, ...] = ()
    instances: tuple[InstanceFacts, ...] = ()
    hosts: Mapping[str, HostFacts] = field(default_factory=dict)
    relocations: tuple[RelocationFacts, ...] = ()
