"""Rollouts and revisions of deployments as the API returns them."""

from schemas.api.plan import FieldChange
from schemas.api.specs import DeploymentSpec
from schemas.api.view import Literal, Moment, View

RolloutStateName = Literal["canary", "progressing", "complete", "failed", "aborted"]


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
