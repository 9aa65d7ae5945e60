"""A deployment with its policy and its judged instances, and the effects of one step of the policy.

Times are seconds of the database's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from controller.domain.instances import Intent
from controller.domain.telemetry.utilization import Judgement, Verdict
from controller.domain.wanted import wanted_replicas
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import UtilizationPolicy, Webhook

PolicyAction: TypeAlias = Literal["stop", "scale_down", "notify"]


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The effective policy of a deployment. An inline policy has no name and no uid."""

    name: str
    uid: str | None
    generation: int
    spec: UtilizationPolicy

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"policy {self.name}" if self.name else "its inline policy"


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """A claim on a GPU by an instance's current epoch."""

    device: str
    worker_id: str
    worker: str
    exclusive: bool
    memory_mib: int
    device_mib: int

    @property
    def share(self) -> float:
        """The share of the GPU that it holds, 0 to 1."""
        return 1.0 if self.exclusive or not self.device_mib else self.memory_mib / self.device_mib


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """The verdict on an instance, as stored."""

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
    acted: str  # the action of this idle episode; `dry_run:` before it: only reported; `resumed:` and a time: undone


@dataclass(frozen=True, slots=True)
class WatchedInstance:
    """One replica, reduced to what a policy needs. `substituted`: another instance was created in its place."""

    id: str
    epoch: int
    phase: str
    running_since: float | None
    claims: tuple[GpuClaim, ...] = ()
    stored: StoredVerdict | None = None
    substituted: bool = False


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """A deployment as of one snapshot."""

    uid: str
    name: str
    generation: int
    version: int
    deleted: bool
    spec: DeploymentSpec
    policy: EffectivePolicy | None
    intents: tuple[Intent, ...]
    instances: tuple[WatchedInstance, ...]
    open_actions: bool  # an action that stopped replicas is not finished
    now: float
    awake_for_s: float = 0.0  # an operator keeps it awake for this long; 0: not

    @property
    def wanted(self) -> int:
        return 0 if self.deleted else wanted_replicas(self.spec, self.intents)


@dataclass(frozen=True, slots=True)
class VerdictWrite:
    """A verdict to be stored in place of the previous one."""

    instance: str
    epoch: int
    policy: EffectivePolicy
    verdict: Verdict
    evidence: Mapping[str, Any]
    acted: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The policy's intent: a cap on replicas, and the instances that stop first."""

    max_replicas: int
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewAction:
    """An action to take, with its event. `gpus`: GPUs that it frees; shares of GPUs count as fractions."""

    action: PolicyAction
    policy: EffectivePolicy
    instances: tuple[tuple[str, int], ...]  # with their epochs
    objects: tuple[str, ...]
    gpus: float
    message: str
    evidence: Mapping[str, Any]
    limit: Limit | None = None  # None: only reported

    @property
    def reason(self) -> str:
        """The event's reason code."""
        return f"policy_would_{self.action}" if self.policy.spec.dry_run else f"policy_{self.action}"

    @property
    def webhook(self) -> Webhook | None:
        return self.policy.spec.webhook


@dataclass(frozen=True, slots=True)
class PolicyEffects:
    """The effects of one step on one deployment."""

    judged: tuple[Judgement, ...] = ()  # one per instance
    verdicts: tuple[VerdictWrite, ...] = ()
    forget: tuple[str, ...] = ()  # instances that are no longer judged
    actions: tuple[NewAction, ...] = ()
    end_actions: bool = False  # its limit no longer applies, or the deployment is gone

    @property
    def writes(self) -> bool:
        return bool(self.verdicts or self.forget or self.actions or self.end_actions)


_ACTS: Final = {"stop": "stops", "scale_down": "scales down", "notify": "notifies"}
_WOULD_ACT: Final = {"stop": "would stop", "scale_down": "would scale down", "notify": "would notify"}


def acts_text(action: str, *, dry_run: bool) -> str:
    return (_WOULD_ACT if dry_run else _ACTS)[action]
