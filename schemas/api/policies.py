"""What the API returns of utilization policies: the objects, and how they bear on deployments and instances."""

from datetime import datetime
from typing import Literal

from schemas.base import View
from schemas.manifest.policy import PolicySpec, UtilizationPolicy

PolicyOrigin = Literal["inline", "named", "default"]
VerdictName = Literal["idle", "busy", "unknown"]


class PolicyWatches(View):
    """To what a policy applies: live deployments, and their instances that have not ended."""

    deployments: int = 0
    instances: int = 0


class PolicyVerdicts(View):
    """Instances by their present verdict."""

    idle: int = 0
    busy: int = 0
    unknown: int = 0


class PolicyStatus(View):
    """What a policy watches and has done.

    Attributes:
        watches: to what it applies now.
        verdicts: of its instances that were judged.
        actions: how often it acted.
        would_have_acted: how often it would have, but for `dry_run`.
        gpu_seconds_freed: one GPU for one second each, or a share of it for as much longer; until it is wanted again.
    """

    watches: PolicyWatches = PolicyWatches()
    verdicts: PolicyVerdicts = PolicyVerdicts()
    actions: int = 0
    would_have_acted: int = 0
    gpu_seconds_freed: float = 0.0


class PolicyView(View):
    """A utilization policy."""

    kind: Literal["UtilizationPolicy"] = "UtilizationPolicy"
    name: str
    uid: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None = None
    spec: PolicySpec
    status: PolicyStatus


class PlannedPolicy(View):
    """The policy that would apply to a deployment. An inline one has no name."""

    origin: PolicyOrigin
    name: str = ""
    spec: UtilizationPolicy


class DeploymentPolicy(PlannedPolicy):
    """The policy that applies to a deployment. The generation of an inline one is the deployment's."""

    generation: int


class InstanceUtilization(View):
    """How an instance was judged.

    Attributes:
        policy: the name of the policy; empty where it is inline.
        policy_generation: of the policy, or of the deployment in which it stands.
        action: what the policy does.
        dry_run: it only tells.
        verdict: what was found.
        reason: a code, such as `window_not_full` or `requests`.
        message: with the figures.
        since: when this verdict was found first.
        low_since: all that is known since then is below the minimum; None where it is not.
        due_at: when it will be idle if it goes on so; None where nobody can tell.
    """

    policy: str
    policy_generation: int
    action: Literal["stop", "scale_down", "notify"]
    dry_run: bool = False
    verdict: VerdictName
    reason: str = ""
    message: str = ""
    since: datetime
    low_since: datetime | None = None
    due_at: datetime | None = None
