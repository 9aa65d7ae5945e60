"""A deployment with its policy, its instances and how they were judged, and what its policy does next. Frozen.

Times are seconds of the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from controller.domain.instances import IntentFacts
from controller.domain.utilization import Judgement, Verdict
from schemas.manifest.policy import UtilizationPolicy, Webhook

PolicyAction: TypeAlias = Literal["stop", "scale_down", "notify"]


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy that applies. Inline: no name and no uid, and the generation is the deployment's."""

    name: str
    uid: str | None
    generation: int
    spec: UtilizationPolicy

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"policy {self.name}" if self.name else "its inline policy"


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A claim on a GPU by an instance's present epoch."""

    device: str
    worker_id: str
    worker: str
    exclusive: bool
    memory_mib: int
    device_mib: int

    @property
    def share(self) -> float:
        """How much of a GPU it holds: 1 for a whole one."""
        return 1.0 if self.exclusive or not self.device_mib else self.memory_mib / self.device_mib


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """The verdict on an instance as its row has it."""

    epoch: int
    policy: str
    policy_uid: str | None
    policy_generation: int
    action: str
    dry_run: bool
    verdict: Judgement
    reason: str
    message: str
    low_since: float | None
    due_at: float | None
    acted: str  # what was done in this episode of idleness: the action, or `dry_run:` and what would have been


@dataclass(frozen=True, slots=True)
class WatchedInstance:
    """One replica, as far as a policy looks at it."""

    id: str
    epoch: int
    phase: str
    running_since: float | None
    claims: tuple[GpuClaim, ...] = ()
    stored: StoredVerdict | None = None


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """A deployment as read at one moment. `open_actions`: that took something away and have not ended."""

    uid: str
    name: str
    generation: int
    version: int
    deleted: bool
    replicas: int
    policy: EffectivePolicy | None
    intents: tuple[IntentFacts, ...]
    instances: tuple[WatchedInstance, ...]
    open_actions: bool
    now: float

    @property
    def wanted(self) -> int:
        """Replicas of the spec, limited by the intents."""
        return 0 if self.deleted else min([self.replicas, *(i.max_replicas for i in self.intents)])


@dataclass(frozen=True, slots=True)
class VerdictWrite:
    """A verdict to be stored, in place of the one before."""

    instance: str
    epoch: int
    policy: EffectivePolicy
    verdict: Verdict
    evidence: Mapping[str, Any]
    acted: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The policy's intent: at most so many replicas, and who shall go."""

    max_replicas: int
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """Something to be done and told. `gpus`: GPUs that it frees, a share for a share."""

    action: PolicyAction
    policy: EffectivePolicy
    instances: tuple[tuple[str, int], ...]  # with their epochs
    objects: tuple[str, ...]
    gpus: float
    message: str
    evidence: Mapping[str, Any]
    limit: Limit | None = None  # None: only told

    @property
    def reason(self) -> str:
        """The event's reason code."""
        return f"policy_would_{self.action}" if self.policy.spec.dry_run else f"policy_{self.action}"

    @property
    def webhook(self) -> Webhook | None:
        """Where it is told."""
        return self.policy.spec.webhook


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Everything that one step does for one deployment."""

    judged: tuple[Judgement, ...] = ()  # of each instance
    verdicts: tuple[VerdictWrite, ...] = ()
    forget: tuple[str, ...] = ()  # instances that no policy judges any more
    actions: tuple[ActionPlan, ...] = ()
    end_actions: bool = False  # what earlier actions took is wanted again, or nobody's

    @property
    def writes(self) -> bool:
        """Whether there is anything for the database."""
        return bool(self.verdicts or self.forget or self.actions or self.end_actions)
