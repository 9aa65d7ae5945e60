"""One deployment as of one snapshot: the input of its decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from controller.domain.phases import InstancePhase
from controller.domain.placement import Layout, Need, NeedError
from controller.domain.rollouts import RolloutSnapshot
from schemas.manifest.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class Revision:
    """An immutable spec with the result of its analysis."""

    generation: int
    spec: DeploymentSpec
    input_hash: str
    created_at: datetime
    need: Need | None = None
    need_error: NeedError | None = None
    commits: Mapping[str, str] = field(default_factory=dict)  # of models on the hub, by `org/name@revision`


@dataclass(frozen=True, slots=True)
class Intent:
    """A limit on the wanted replicas. The autoscaler's floor and cap are the same number."""

    source: str
    max_replicas: int
    reason: str
    instances: tuple[str, ...] = ()  # that are scaled down first
    min_replicas: int = 0


@dataclass(frozen=True, slots=True)
class InstanceClaim:
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
    healthy: bool = True  # the device is present and its health is ok
    device_mib: int = 0  # memory of the device
    device_claimed_mib: int = 0  # by all claims
    gone: str = ""  # why nothing can run on the device any more, though its worker answers
    worker_engines: Sequence[str] | None = None  # its worker's engines and their builds


@dataclass(frozen=True, slots=True)
class ReportedProcess:
    """An agent's latest report of a process. `ended_at`: the first report of its end; None if it has not ended."""

    epoch: int
    rank: int
    worker_id: str
    state: Literal["starting", "running", "unhealthy", "stopping", "exited"]
    reason: str | None
    exit_code: int | None
    message: str
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EndedStart:
    """A start that has ended: the times of its command and of the first report of its end, by the database's clock.

    No later report of the agent changes them. `orderly`: it was stopped together with its agent or its host.
    """

    started: datetime
    ended: datetime
    orderly: bool = False


@dataclass(frozen=True, slots=True)
class CommandState:
    """A command and its state. `sent`: it may have reached the agent."""

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
class ClaimedWorker:
    """A worker on which this deployment holds claims, reduced to what its instances depend on."""

    id: str
    name: str
    phase: Literal["joining", "ready", "unreachable", "lost"]
    reason: str
    draining: bool
    deleted: bool
    confirmed_dead: bool
    fence_until: datetime | None
    drain_until: datetime | None = None  # replacements start first until then; None: a drain stops all at once
    drain_restarts_tasks: bool = False  # from then on, tasks that never restart are stopped and start elsewhere


@dataclass(frozen=True, slots=True)
class InstanceState:
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
    engine: str = ""  # chosen by placement; empty: its spec leaves no choice
    layout: Layout | None = None  # chosen by placement; None: not chosen yet
    start_phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each finished phase of this start
    start_phase_since: datetime | None = None  # start of the present phase; None: `phase_since`
    preempted_for: str | None = None  # the pending instance that gets its capacity
    mended: bool = False  # a secret that its start lacked has changed since
    restarts_now: bool = False  # a user requested a restart of this start
    requests: int = 0  # in flight, as gateways last reported
    seen_requests: int = 0  # in flight, as its agent last observed: also those of silent gateways
    claims: tuple[InstanceClaim, ...] = ()
    processes: tuple[ReportedProcess, ...] = ()
    commands: tuple[CommandState, ...] = ()
    runs: tuple[EndedStart, ...] = ()  # its ended starts, newest first; read only if the present start has ended

    def process(self, rank: int = 0) -> ReportedProcess | None:
        """The current epoch's process of that rank; None until an agent reports it."""
        return next((p for p in self.processes if p.epoch == self.epoch and p.rank == rank), None)

    def command(self, verb: str, rank: int = 0) -> CommandState | None:
        return next((c for c in self.commands if c.epoch == self.epoch and c.rank == rank and c.verb == verb), None)

    def unsent_start(self, rank: int) -> int | None:
        """The id of the rank's start command if no agent can have seen it."""
        start = self.command("start", rank)
        unknown = start is not None and start.state == "open" and not start.sent and self.process(rank) is None
        return start.id if start is not None and unknown else None

    @property
    def ended_with_zero(self) -> bool:
        """Whether the processes of all its ranks have ended with exit code 0."""
        processes = [self.process(rank) for rank in self.ranks]
        return bool(processes) and all(p is not None and p.state == "exited" and p.exit_code == 0 for p in processes)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that hold claims."""
        return tuple(sorted({c.rank for c in self.claims}))

    def host_of(self, rank: int) -> str | None:
        return next((c.worker_id for c in self.claims if c.rank == rank), None)


@dataclass(frozen=True, slots=True)
class StoredRelocation:
    """A relocation under way: `instance` at `epoch` stops once `replacement` runs; empty: not created yet.

    purpose: for a `drain` of the worker or a `restart` by a user, the replacement is placed like any instance.
    """

    id: int
    instance: str
    epoch: int
    to: str  # names of the workers, for messages
    replacement: str = ""
    purpose: Literal["plan", "drain", "restart"] = "plan"


@dataclass(frozen=True)  # no slots: cached properties need __dict__
class DeploymentSnapshot:
    """A deployment with its newest revision, the revisions that instances still run, its instances and their hosts."""

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
    now: datetime  # by the database's clock
    revisions: Mapping[int, Revision]
    intents: tuple[Intent, ...] = ()
    instances: tuple[InstanceState, ...] = ()
    hosts: Mapping[str, ClaimedWorker] = field(default_factory=dict)
    relocations: tuple[StoredRelocation, ...] = ()
    rollout: RolloutSnapshot | None = None  # None: none is stored
    placed_before: int | None = None  # replicas that were placed when its revision became the newest; None: unknown

    @cached_property
    def by_id(self) -> Mapping[str, InstanceState]:
        return {i.id: i for i in self.instances}

    @cached_property
    def substitutes(self) -> Mapping[str, InstanceState]:
        """Its instances that replace another instance, by the id of the replaced instance."""
        return {i.replaces: i for i in self.instances if i.replaces is not None}
