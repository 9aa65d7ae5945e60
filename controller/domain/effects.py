"""The effects of one step on one deployment, which the reconciler writes in one guarded transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from controller.domain.events import NewEvent
from controller.domain.instances import InstanceState
from controller.domain.phases import InstancePhase, check_instance_edge
from controller.domain.placement import Need, NeedError
from controller.domain.rollouts import RolloutRecord

ANALYZING_MESSAGE: Final = "its need is being analyzed"


class StaleError(Exception):
    """A guarded write met rows that changed since they were read. Nothing was written; read and decide again."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """An instance at an epoch that stops once its replacement runs."""

    instance: str
    epoch: int
    purpose: Literal["drain", "restart"]


@dataclass(frozen=True, slots=True)
class Create:
    """A new instance of a revision, in `pending`, or in `analyzing` while its need is being analyzed."""

    revision: int
    replaces: str | None = None
    analyzing: bool = False
    born: datetime | None = None  # its queue time, kept from the preempted instance that it replaces; None: now
    relocation: int | None = None  # of which it is the replacement
    replaced: Replaced | None = None  # it is the replacement of this instance, which is drained or restarted


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """Written only while the instance is in `expected` at `epoch`. None leaves a column as it is."""

    instance: str
    expected: InstancePhase
    epoch: int
    to: InstancePhase
    reason: str = ""
    message: str = ""
    failures: int | None = None
    restarts: int | None = None
    not_before: datetime | None = None  # always written
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a start, as text. Written only while the instance starts, or is unreachable, at this epoch."""

    instance: str
    epoch: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Restart:
    """The next epoch on the same worker: its claims are renewed, a start command is written, phase `starting`."""

    instance: str
    expected: InstancePhase
    epoch: int  # that ended


@dataclass(frozen=True, slots=True)
class Release:
    """Releases the claims of an instance whose processes are dead or were never started."""

    instance: str
    epoch: int
    rank: int | None = None  # None: all


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop command for one process."""

    instance: str
    epoch: int
    rank: int
    worker_id: str
    drain_time_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Deletes the instance's row, after its claims."""

    instance: str
    expected: InstancePhase
    epoch: int


@dataclass(frozen=True, slots=True)
class RelocationEnd:
    """The end of a relocation."""

    id: int
    state: Literal["moved", "abandoned"]
    message: str


@dataclass(frozen=True, slots=True)
class StoreNeed:
    """The result of an analysis, stored with the revision. Without need and error it clears an earlier error."""

    generation: int
    need: Need | None
    error: NeedError | None
    commits: Mapping[str, str] = field(default_factory=dict)  # that were read, by the model on the hub


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """The derived status of a deployment."""

    phase: str
    reason: str
    message: str
    ready: int
    observed_generation: int
    conditions: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class DeploymentEffects:
    """All effects of one step. The decision's sub-steps fill it; every phase change passes the edge table here."""

    creates: list[Create] = field(default_factory=list)
    phase_changes: list[PhaseChange] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    # ids of unsent commands; an ordered set, since several sub-steps may withdraw one. The step is void if it was sent
    withdrawals: dict[int, None] = field(default_factory=dict)
    removals: list[Remove] = field(default_factory=list)
    store_need: StoreNeed | None = None
    status: DeploymentStatus | None = None  # None: unchanged
    finish: bool = False  # deletes the row of a deleted deployment
    events: list[NewEvent] = field(default_factory=list)  # the writer adds the deployment to their objects
    relocation_ends: list[RelocationEnd] = field(default_factory=list)
    forget_failures: list[str] = field(default_factory=list)  # instances that have run long enough
    analyse: int | None = None  # the generation that must be analyzed
    wake_placement: bool = False
    rollout: RolloutRecord | None = None  # None: unchanged
    forget_rollout: bool = False  # deletes the record
    requeue_after_s: float | None = None  # until the next step at the latest; None: on the next hint

    @property
    def writes(self) -> bool:
        return bool(
            self.creates or self.phase_changes or self.restarts or self.releases or self.stops or self.withdrawals
            or self.removals or self.store_need or self.status or self.finish or self.events or self.forget_failures
            or self.relocation_ends or self.rollout or self.forget_rollout or self.progress
        )  # fmt: skip

    def change_phase(
        self,
        instance: InstanceState,
        to: InstancePhase,
        reason: str = "",
        message: str = "",
        *,
        failures: int | None = None,
        restarts: int | None = None,
        not_before: datetime | None = None,
        stop_reason: str | None = None,
    ) -> None:
        """Adds a phase change. Raises IllegalTransitionError if the edge table does not have it."""
        check_instance_edge(instance.id, instance.phase, to)
        self.phase_changes.append(
            PhaseChange(
                instance=instance.id,
                expected=instance.phase,
                epoch=instance.epoch,
                to=to,
                reason=reason,
                message=message,
                failures=failures,
                restarts=restarts,
                not_before=not_before,
                stop_reason=stop_reason,
            )
        )

    def release(self, instance: InstanceState) -> None:
        """Releases all claims, which frees capacity for pending instances.

        Unsent commands are withdrawn with them: a host that is presumed dead may return and fetch its commands.
        """
        for rank in instance.ranks:
            self.withdraw(instance, rank)
        if instance.claims:
            self.releases.append(Release(instance=instance.id, epoch=instance.epoch))
            self.wake_placement = True

    def release_rank(self, instance: InstanceState, rank: int) -> None:
        """Releases one rank's claims. After that the instance can only end."""
        self.releases.append(Release(instance=instance.id, epoch=instance.epoch, rank=rank))
        self.wake_placement = True

    def withdraw(self, instance: InstanceState, rank: int) -> bool:
        """Withdraws the rank's start command if no agent can have seen it; returns whether it did."""
        command_id = instance.unsent_start(rank)
        if command_id is not None:
            self.withdrawals[command_id] = None
        return command_id is not None

    def remove(self, instance: InstanceState) -> None:
        self.release(instance)
        self.removals.append(Remove(instance=instance.id, expected=instance.phase, epoch=instance.epoch))

    def requeue(self, seconds: float) -> None:
        """Makes the next step due in `seconds` at the latest."""
        seconds = max(seconds, 0.01)
        self.requeue_after_s = seconds if self.requeue_after_s is None else min(self.requeue_after_s, seconds)
