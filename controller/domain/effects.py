"""What a decision about one deployment asks to be done: data, applied by the reconciler in one guarded transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from controller.domain.instances import NeedError
from controller.domain.phases import InstancePhase
from controller.domain.placement import Need

ANALYZING_MESSAGE: Final = "its need is worked out"


@dataclass(frozen=True, slots=True)
class Create:
    """A new instance of a revision, in `pending`, or in `analyzing` where its need is being worked out."""

    revision: int
    replaces: str | None = None
    analyzing: bool = False
    born: datetime | None = None  # where it has the age of another, which was pushed out; None: now
    relocation: int | None = None  # of which it is the copy


@dataclass(frozen=True, slots=True)
class Move:
    """A phase change, done only while the instance is still in `expected` at `epoch`. None leaves a column alone."""

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
class Restart:
    """The next epoch on the same worker: claims renewed under it, a start ordered, phase `starting`."""

    instance: str
    expected: InstancePhase
    epoch: int  # the one that ended


@dataclass(frozen=True, slots=True)
class Release:
    """All claims of an instance go, or those of one rank: what held them is dead, or was never started."""

    instance: str
    epoch: int
    rank: int | None = None  # None: all


@dataclass(frozen=True, slots=True)
class StopOrderPlan:
    """A stop for one process."""

    instance: str
    epoch: int
    rank: int
    worker_id: str
    drain_time_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """An order that was never sent is taken back; the step is void if it was sent meanwhile."""

    command_id: int


@dataclass(frozen=True, slots=True)
class Remove:
    """The instance's row goes; its claims must have gone before."""

    instance: str
    expected: InstancePhase
    epoch: int


@dataclass(frozen=True, slots=True)
class RelocationEnd:
    """A relocation is over."""

    id: int
    state: Literal["moved", "abandoned"]
    message: str


@dataclass(frozen=True, slots=True)
class StoreNeed:
    """The result of the analysis, kept with the revision."""

    generation: int
    need: Need | None
    error: NeedError | None


@dataclass(frozen=True, slots=True)
class DeploymentUpdate:
    """Derived state of the deployment."""

    phase: str
    reason: str
    message: str
    ready: int
    observed_generation: int
    conditions: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """An event to be written with the plan. Objects besides the deployment."""

    reason: str
    message: str
    objects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeploymentEffects:
    """Everything that one step does. `analyse`: the generation whose analysis shall run; None: none shall."""

    creates: tuple[Create, ...] = ()
    moves: tuple[Move, ...] = ()
    restarts: tuple[Restart, ...] = ()
    releases: tuple[Release, ...] = ()
    stops: tuple[StopOrderPlan, ...] = ()
    withdrawals: tuple[Withdraw, ...] = ()
    removals: tuple[Remove, ...] = ()
    store_need: StoreNeed | None = None
    update: DeploymentUpdate | None = None
    finish: bool = False  # the tombstone may go
    facts: tuple[Fact, ...] = ()
    relocated: tuple[RelocationEnd, ...] = ()
    forget_failures: tuple[str, ...] = ()
    analyse: int | None = None
    wake_placement: bool = False
    again_after_s: float | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything for the database."""
        return bool(
            self.creates or self.moves or self.restarts or self.releases or self.stops or self.withdrawals
            or self.removals or self.store_need or self.update or self.finish or self.facts or self.forget_failures
            or self.relocated
        )  # fmt: skip
