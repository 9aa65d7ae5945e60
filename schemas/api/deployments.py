"""Deployments as the API returns them, with their rollouts and revisions."""

from typing import Any

from schemas.api.envelopes import Condition
from schemas.api.plan import FieldChange
from schemas.api.policies import DeploymentPolicy
from schemas.api.specs import DeploymentSpec
from schemas.api.view import Literal, Moment, View

RolloutStateName = Literal["canary", "progressing", "complete", "failed", "aborted"]
DeploymentPhaseName = Literal[
    "pending", "progressing", "running", "degraded", "stopped", "asleep", "succeeded", "failed", "deleting"
]


class RolloutStatus(View, frozen=True, kw_only=True):
    """How far the rollout of the newest revision is, with `update: rolling`.

    Attributes:
        state: `failed`: the new revision did not become ready. `aborted`: it had too many errors.
        paused: by a user.
        revision: that is rolled out.
        stable: the last one of which all replicas ran, to which a rollout falls back; None: there is none yet.
        reason: for the state.
        since: when it came to this state.
        updated: replicas of the revision.
        available: of these, such as run for `ready_for`.
        weight: percent of the requests for the revision; None: by least load over all replicas.
        canary_until: when the canary ends; None: there is none, or its replicas are not ready.
        requests: to the revision in this attempt, as gateways have counted.
        errors: of these, such as ended with a 5xx of the engine or with its death.
    """

    state: RolloutStateName
    paused: bool = False
    revision: int
    stable: int | None = None
    reason: str = ""
    message: str = ""
    since: Moment
    updated: int = 0
    available: int = 0
    weight: int | None = None
    canary_until: Moment | None = None
    requests: int = 0
    errors: int = 0


class RevisionView(View, frozen=True, kw_only=True):
    """A revision of a deployment: the spec that its processes run. Fields that change in place are as they were then.

    Attributes:
        revision: its number.
        created_at: when it was first applied.
        applied_at: when it was last applied, or gone back to.
        actor: which key made it, as `key:NAME`; empty: unknown.
        request_id: of the request that made it.
        newest: the deployment shall run it.
        stable: all replicas ran it last.
        instances: that run it, or are on their way.
        image_digest: of the image that all its containers run; None: none has run yet.
        model_commits: of its models on the hub, by `org/name@revision`; empty: none is known yet.
    """

    revision: int
    created_at: Moment
    applied_at: Moment
    actor: str = ""
    request_id: str = ""
    newest: bool = False
    stable: bool = False
    instances: int = 0
    image_digest: str | None = None
    model_commits: dict[str, str] = {}
    spec: DeploymentSpec


class RevisionList(View, frozen=True, kw_only=True):
    """A deployment's revisions, the one that was applied last first. A bounded number is kept."""

    items: list[RevisionView]


class RevisionDiff(View, frozen=True, kw_only=True):
    """The fields in which two revisions of a deployment differ, as a plan tells the changes of an apply.

    Attributes:
        old: number of the revision that the values `old` are of.
        new: number of the revision that the values `new` are of.
        fields: in the order of manifests; `replaces`: a change that takes new processes.
    """

    old: int
    new: int
    fields: list[FieldChange]


class IntentView(View, frozen=True, kw_only=True):
    """A limit on the wanted replicas, with its source.

    Attributes:
        min_replicas: its floor. Only the autoscaler has one: its floor and its cap are the number that it wants.
    """

    source: Literal["user", "policy", "autoscaler"]
    max_replicas: int
    min_replicas: int = 0
    reason: str = ""
    message: str = ""
    created_at: Moment


class ScalingStatus(View, frozen=True, kw_only=True):
    """How the number of replicas follows the requests.

    Attributes:
        number: that the requests ask for, between min and max.
        reason: for it.
        since: when it became this number.
        at: when the evidence is from.
        dry_run: it is only shown.
        capped_by: the source of a limit that keeps fewer: user or policy; empty: none does.
        awake_until: an operator keeps it awake until then.
        evidence: what the number rests on, with `graph`: demand, one figure each `graph_step_s`, oldest first.
    """

    number: int
    min: int
    max: int
    reason: str
    message: str
    since: Moment
    at: Moment
    dry_run: bool = False
    capped_by: str = ""
    awake_until: Moment | None = None
    evidence: dict[str, Any] = {}


class DeploymentStatus(View, frozen=True, kw_only=True):
    """The status of a deployment, derived from its instances.

    Attributes:
        ready: number of running instances.
        wanted: number of wanted instances: the replicas of the spec, limited by the intents.
        observed_generation: the latest generation that the controller has acted on.
        policy: the effective utilization policy; None: there is none.
        scaling: how its number of replicas follows the requests; None: it is fixed, or not decided yet.
        engines: that were chosen for its placed instances, by name; most often one. Empty: none is placed.
        image_digest: of the image that all containers of the revision run; None: none has run yet, or no containers.
        model_commits: of its models on the hub, which all starts of the revision run, by `org/name@revision`.
        rollout: how far the rollout of its newest revision is; None: it has `update: recreate`, or none began yet.
    """

    phase: DeploymentPhaseName
    reason: str = ""
    message: str = ""
    ready: int = 0
    wanted: int = 0
    observed_generation: int = 0
    revision: int = 1
    engines: list[str] = []
    image_digest: str | None = None
    model_commits: dict[str, str] = {}
    conditions: list[Condition] = []
    intents: list[IntentView] = []
    policy: DeploymentPolicy | None = None
    scaling: ScalingStatus | None = None
    rollout: RolloutStatus | None = None


class ModelHead(View, frozen=True, kw_only=True):
    """A model on the hub: the commit that the revision runs, and the one that its branch or tag names now.

    Attributes:
        model: `org/name@revision`.
        head: None: the hub was not reached, or refuses it; `problem` has the words.
        moved: whether these differ; None: unknown.
    """

    model: str
    commit: str
    head: str | None = None
    moved: bool | None = None
    problem: str = ""


class ModelHeads(View, frozen=True, kw_only=True):
    """The models on the hub that a deployment's newest revision runs."""

    items: list[ModelHead] = []


class DeploymentView(View, frozen=True, kw_only=True):
    """A deployment. `warnings` are about what an apply has just written; empty in all other answers."""

    kind: Literal["Deployment"] = "Deployment"
    name: str
    uid: str
    generation: int
    created_at: Moment
    deleted_at: Moment | None = None
    spec: DeploymentSpec
    status: DeploymentStatus
    warnings: list[str] = []


class DeploymentLoad(View, frozen=True, kw_only=True):
    """The requests that a deployment has at all gateways, by their last report, which is at most a few seconds old.

    Attributes:
        in_flight: requests at its instances.
        waiting: requests that wait for an instance.
        silent: gateways that have not reported for 10 s. What they have is unknown, and not counted.
    """

    in_flight: int
    waiting: int
    silent: list[str] = []
