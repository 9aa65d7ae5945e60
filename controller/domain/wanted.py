"""The number of wanted replicas: the autoscaler's number between min and max, then the caps of users and policies."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from schemas.manifest.deployment import DeploymentSpec

AUTOSCALER: Final = "autoscaler"
POLICY: Final = "policy"


class LimitOfReplicas(Protocol):
    """An intent: a floor and a cap, by its source."""

    @property
    def source(self) -> str:
        """The part of the controller, or the user, that wrote it."""

    @property
    def min_replicas(self) -> int:
        """The floor; only the autoscaler's is above 0."""

    @property
    def max_replicas(self) -> int:
        """The cap."""


@dataclass(frozen=True, slots=True)
class ReplicaRule:
    """The bounds of a spec's number of replicas. `dry_run`: the autoscaler's number is only shown."""

    low: int
    high: int
    dry_run: bool = False

    @property
    def may_sleep(self) -> bool:
        """Whether it runs no replicas without requests, and a request wakes it."""
        return self.low == 0 < self.high and not self.dry_run

    def requested(self, intents: Iterable[LimitOfReplicas]) -> int:
        """The number by spec and autoscaler, before the caps. A new deployment starts at min."""
        if self.low == self.high:
            return self.low
        if self.dry_run:
            return max(self.low, 1)
        number = next((intent.min_replicas for intent in intents if intent.source == AUTOSCALER), self.low)
        return min(max(number, self.low), self.high)

    def wanted(self, intents: Iterable[LimitOfReplicas]) -> int:
        limits = tuple(intents)
        caps = [intent.max_replicas for intent in limits if intent.source != AUTOSCALER]
        return min([self.requested(limits), *caps])


def replica_rule(spec: DeploymentSpec) -> ReplicaRule:
    return ReplicaRule(*spec.replica_bounds, spec.scaling.dry_run)


def requested_replicas(spec: DeploymentSpec, intents: Iterable[LimitOfReplicas]) -> int:
    """The number by spec and autoscaler, before the caps."""
    return replica_rule(spec).requested(intents)


def wanted_replicas(spec: DeploymentSpec, intents: Iterable[LimitOfReplicas]) -> int:
    return replica_rule(spec).wanted(intents)


def scales(spec: DeploymentSpec) -> bool:
    """Whether its number of replicas follows the requests, or would without a dry run."""
    low, high = spec.replica_bounds
    return low < high


def follows_requests(spec: DeploymentSpec) -> bool:
    """Whether the autoscaler's number takes effect."""
    return scales(spec) and not spec.scaling.dry_run


def kept_number(before: DeploymentSpec, spec: DeploymentSpec, intents: Iterable[LimitOfReplicas]) -> int | None:
    """The autoscaler's first number if replicas start to follow the requests; else None.

    `intents`: until now.
    """
    if not follows_requests(spec) or follows_requests(before):
        return None
    low, high = spec.replica_bounds
    return min(max(wanted_replicas(before, intents), low), high)


def may_sleep(spec: DeploymentSpec) -> bool:
    return replica_rule(spec).may_sleep


def is_put_to_sleep(spec: DeploymentSpec, intents: Iterable[LimitOfReplicas]) -> bool:
    """Whether a utilization policy has stopped it until a request wakes it."""
    return may_sleep(spec) and any(i.source == POLICY and i.max_replicas == 0 for i in intents)


def is_asleep(spec: DeploymentSpec, intents: Iterable[LimitOfReplicas]) -> bool:
    """Whether it wants no replicas until a request wakes it, and no user has stopped it."""
    limits = tuple(intents)
    if not may_sleep(spec) or wanted_replicas(spec, limits) > 0:
        return False
    return all(intent.max_replicas > 0 for intent in limits if intent.source not in (AUTOSCALER, POLICY))
