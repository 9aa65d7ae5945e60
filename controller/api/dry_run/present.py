"""What a rehearsal begins with, and its instances that have no place yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.api.dry_run.changes import Successors
from controller.api.dry_run.queue import Queue
from controller.domain.holdings import Holder, Holders, Holdings
from controller.domain.instances import DeploymentFacts
from controller.domain.pending import PendingInstance
from controller.domain.placement import Placed
from controller.scheduling.admission.admit import AdmissionDecision
from controller.scheduling.inventory.capacity import Inventory


@dataclass(frozen=True, slots=True)
class Present:
    """The present, read at one moment; a rehearsal consumes the inventory.

    Attributes:
        inventory: what is free.
        holdings: the claims of each instance.
        holders: the instances with claims; needed where anything may stop or be preempted.
        queue: the pending instances.
        facts: the existing deployments of the file, as the apply leaves them, by uid.
        successors: what the successors of preempted instances ask for.
        no_preemption: by uid of a deployment of the file, why its new instances preempt nothing although they may.
    """

    inventory: Inventory
    holdings: Holdings = field(default_factory=Holdings)
    holders: Holders = field(default_factory=Holders)
    queue: Queue = field(default_factory=Queue)
    facts: Mapping[str, DeploymentFacts] = field(default_factory=dict)
    successors: Successors = field(default_factory=dict)
    no_preemption: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rehearsed:
    """An instance that has no place yet, and what becomes of it.

    Attributes:
        pending: as admission sees it.
        order: by priority, then age.
        uid: of its deployment.
        answer: of the latest pass; None: not decided.
        placed: its place.
        waited: the answer with which it chose victims.
        victims: what it preempts.
    """

    pending: PendingInstance
    order: tuple[int, float, int]
    uid: str
    answer: AdmissionDecision | None = None
    placed: Placed | None = None
    waited: AdmissionDecision | None = None
    victims: list[Holder] = field(default_factory=list)
