"""A pending instance: as it is stored, and as admission sees it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.domain.placement import Ask


@dataclass(frozen=True, slots=True)
class Destination:
    """A place chosen beforehand: workers by name, GPUs by UUID."""

    workers: tuple[str, ...]
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingInstance:
    """An instance in the admission queue.

    Attributes:
        ask: what it asks for.
        priority: of its deployment.
        preempt: may preempt lower-priority instances.
        waited_s: seconds since it became pending.
        preempting: its preemption victims have not ended yet.
        relocation_target: the ask for the one place that relocations free for it.
        reserved_s: seconds since capacity was first reserved for it that only servers hold; None: never.
        queued_at: seconds since the epoch, from which its age in the queue counts; infinite: not created yet.
        awaited: not created yet, since the outdated instance that it succeeds is still stopping.
        promised: the place that the instances which it preempted leave for it.
        no_preemption: why it preempts nothing although it may; empty: nothing is against it.
    """

    ask: Ask
    priority: int = 0
    preempt: bool = False
    waited_s: float = 0.0
    preempting: bool = False
    relocation_target: Ask | None = None
    reserved_s: float | None = None
    queued_at: float = math.inf
    awaited: bool = False
    promised: Destination | None = None
    no_preemption: str = ""

    def bound_for(self, to: Destination) -> Ask:
        """Its ask with a manual selection of that place."""
        return _bound_for(self.ask, to)


@dataclass(frozen=True, slots=True)
class RefusedStart:
    """A start that was refused, by an agent or in its stead.

    Attributes:
        code: a reason code.
        message: why.
        worker: its name; empty: it is gone.
        ago_s: seconds since.
        changed: whether its agent has connected again or reported other devices since, or the worker is gone.
    """

    code: str
    message: str
    worker: str
    ago_s: float
    changed: bool


@dataclass(frozen=True, slots=True)
class PendingRow:
    """An instance that can be placed as soon as it fits somewhere."""

    id: str
    deployment_uid: str
    deployment: str
    revision: int
    phase: str
    epoch: int
    waited_s: float
    message: str
    avoid_worker: str | None = None  # on which it failed too often in a row
    priority: int = 0
    preempt: bool = False
    preempting: bool = False  # its preemption victims have not ended yet
    destination: Destination | None = None  # of a relocation's replacement, which goes there and nowhere else
    relocation_target: Destination | None = None  # that relocations free for it
    reserved_s: float | None = None  # since capacity that servers hold was first reserved for it
    queued_at: float = math.inf
    awaited: bool = False  # not created yet, since the outdated instance that it succeeds is still stopping
    promised: Destination | None = None  # the place that the instances which it preempted leave for it
    failures: int = 0  # of its starts in a row
    refused: RefusedStart | None = None  # its last start, if it may preempt
    no_preemption: str = ""  # why it preempts nothing although it may

    def ask_by(self, ask: Ask) -> Ask:
        """Its own ask, from the ask that all instances of its revision share."""
        avoid = frozenset({self.avoid_worker}) if self.avoid_worker else frozenset[str]()
        own = ask.for_instance(self.id, avoid)
        return own if self.destination is None else _bound_for(own, self.destination)

    def pending_by(self, ask: Ask) -> PendingInstance:
        """Its place in the queue, from the ask that all instances of its revision share."""
        own = self.ask_by(ask)
        relocation_target = _bound_for(own, self.relocation_target) if self.relocation_target is not None else None
        return PendingInstance(
            own, self.priority, self.preempt, self.waited_s, self.preempting, relocation_target, self.reserved_s,
            self.queued_at, self.awaited, self.promised, self.no_preemption,
        )  # fmt: skip


def in_order(pending: Sequence[PendingRow], awaited: Sequence[PendingRow]) -> list[PendingRow]:
    """All in the order in which they are placed. The awaited ones come after what is pending with their priority.

    Args:
        pending: as they are read: the replacements of relocations, then by priority and age.
        awaited: the successors of outdated instances that are stopping.
    """
    if not awaited:
        return list(pending)

    def order(one: PendingRow) -> tuple[bool, int]:
        return one.destination is None, -one.priority

    return sorted([*pending, *awaited], key=order)


def new_instance(id_: str, deployment_uid: str, deployment: str, revision: int) -> PendingRow:
    """An instance that is about to be created and needs only a place."""
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
    """The ask with a manual selection of that place: the same checks, and no other place."""
    otherwise = _bound_for(ask.otherwise, to) if ask.otherwise is not None else None
    return replace(ask, workers=() if to.gpus else to.workers, gpus=to.gpus, otherwise=otherwise)
