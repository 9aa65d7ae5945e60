"""Utilization policies as the API returns them, and their effect on deployments and instances."""

from schemas.api.specs import PolicySpec, UtilizationPolicy
from schemas.api.view import Literal, Moment, View

PolicyOrigin = Literal["inline", "named", "default"]
VerdictName = Literal["idle", "busy", "unknown"]


class PolicyWatches(View, frozen=True, kw_only=True):
    """How many live deployments a policy applies to, and how many of their instances are not final."""

    deployments: int = 0
    instances: int = 0


class PolicyVerdicts(View, frozen=True, kw_only=True):
    """How many instances have each verdict now."""

    idle: int = 0
    busy: int = 0
    unknown: int = 0


class PolicyStatus(View, frozen=True, kw_only=True):
    """What a policy watches and has done.

    Attributes:
        watches: what it applies to now.
        verdicts: the verdicts on its instances.
        actions: how often it acted.
        would_have_acted: how often it would have acted without `dry_run`.
        gpu_seconds_freed: until the stopped instances were started again; a share of a GPU counts as that share.
    """

    watches: PolicyWatches = PolicyWatches()
    verdicts: PolicyVerdicts = PolicyVerdicts()
    actions: int = 0
    would_have_acted: int = 0
    gpu_seconds_freed: float = 0.0


class PolicyView(View, frozen=True, kw_only=True):
    """A utilization policy. `warnings` are about stored fields that no longer act as written."""

    kind: Literal["UtilizationPolicy"] = "UtilizationPolicy"
    name: str
    uid: str
    generation: int
    created_at: Moment
    deleted_at: Moment | None = None
    spec: PolicySpec
    status: PolicyStatus
    warnings: list[str] = []


class PlannedPolicy(View, frozen=True, kw_only=True):
    """The policy that would apply to a deployment. An inline policy has no name."""

    origin: PolicyOrigin
    name: str = ""
    spec: UtilizationPolicy


class DeploymentPolicy(PlannedPolicy, frozen=True, kw_only=True):
    """The effective policy of a deployment. An inline policy has the generation of the deployment."""

    generation: int


class InstanceUtilization(View, frozen=True, kw_only=True):
    """The verdict of a policy on an instance.

    Attributes:
        policy: the name of the policy; empty: it is inline.
        policy_generation: of the policy; of the deployment if the policy is inline.
        action: what the policy does about idle instances.
        dry_run: the policy only records its actions.
        reason: a code, such as `window_not_full` or `requests`.
        message: the reason with its figures.
        since: the time of the first verdict of this kind in a row.
        low_since: all samples since then are below the minimum; None: the latest is not.
        due_at: when the instance will be idle if its samples stay low; None: unknown.
        acts: what follows from an idle verdict, in words: `stops`, or with a dry run `would stop`.
    """

    policy: str
    policy_generation: int
    action: Literal["stop", "scale_down", "notify"]
    dry_run: bool = False
    acts: str = ""
    verdict: VerdictName
    reason: str = ""
    message: str = ""
    since: Moment
    low_since: Moment | None = None
    due_at: Moment | None = None
