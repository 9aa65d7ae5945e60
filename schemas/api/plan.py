"""The answer to `POST /plan`: what an apply would do."""

from typing import Any

from schemas.api.explain import Explain
from schemas.api.needs import LayoutView, NeedView
from schemas.api.policies import PlannedPolicy
from schemas.api.view import Literal, Moment, View


class PlanItem(View, frozen=True, kw_only=True):
    """What would happen to one instance."""

    deployment: str
    instance: int
    fits: bool
    worker: str | None = None  # of a gang the worker of the leader
    workers: list[str] = []  # by rank
    gpus: list[str] = []  # by rank, in the order that the process sees
    memory_mib_per_gpu: int | None = None
    engine: str | None = None
    layout: LayoutView | None = None
    need: NeedView | None = None
    preempts: list[str] = []  # instances that would be preempted, so that it fits once they have ended
    reason: str | None = None  # the reason code of an instance that stays pending
    explain: Explain | None = None


class FieldChange(View, frozen=True, kw_only=True):
    """A field of a manifest that an apply changes.

    Attributes:
        field: its path, such as `resources.gpu_memory`.
        old: its value before, or the default; None: it was not there.
        new: its value after, or the default; None: it is not there any more.
        effect: whether running instances go on as they are, or are replaced.
    """

    field: str
    old: Any = None
    new: Any = None
    effect: Literal["in_place", "replaces"]


class PlanCandidates(View, frozen=True, kw_only=True):
    """Which GPUs could be selected by hand, in columns. Entry `i` of each column is of GPU `i`, by worker and index.

    The checks are those of every placement. They are made when the plan decides the first instance: after what comes
    before it in the queue, and without what it would preempt elsewhere. The selection of the manifest itself is set
    aside: `placement.workers` and `placement.gpus`, but not its labels.

    - An instance that takes one GPU would be placed on each selectable GPU if that one alone were selected.
    - For one that takes several GPUs, a GPU is selectable if it and its worker pass every check for one GPU of any
      possible layout, and the worker has as many such GPUs as a layout on one worker takes. A plan with
      several selected shows whether they may serve together.
    - For one that takes no GPU, none is selectable.

    The GPUs that the plan itself chooses are selectable.

    Attributes:
        workers: the names of all workers with GPUs.
        worker: its number in `workers`.
        code: the first check that fails, for the layout that comes furthest; empty: selectable.
        message: the same in words, to be followed by `since` and the moment where that is known; empty: selectable.
        since: since when a worker is not ready or a GPU is unhealthy; None: unknown, or another reason.
    """

    workers: list[str]
    worker: list[int]
    index: list[int]
    uuid: list[str]
    selectable: list[bool]
    code: list[str]
    message: list[str]
    since: list[Moment | None]


class PolicyStop(View, frozen=True, kw_only=True):
    """A deployment of which a policy would stop replicas at its next step, as far as that is known.

    Attributes:
        policy: its name; empty: the policy is inline.
        action: `stop`: all replicas; `scale_down`: some of them; `unknown`: telemetry is missing, so nothing stops now.
        stops: number of instances that would stop.
        replicas: number of replicas that would be left; None: unknown.
        message: the reason, or what is missing.
    """

    deployment: str
    policy: str = ""
    action: Literal["stop", "scale_down", "unknown"]
    stops: int = 0
    replicas: int | None = None
    message: str = ""


class PolicyStops(View, frozen=True, kw_only=True):
    """What policies would stop at once because of an apply, beyond what they would stop without it.

    Attributes:
        stop: number of deployments that would stop.
        scale_down: number of deployments that would be scaled down.
        unknown: number of deployments of which it is unknown.
        items: the first 100 of each, in this order and by name.
    """

    stop: int = 0
    scale_down: int = 0
    unknown: int = 0
    items: list[PolicyStop] = []


class PlanView(View, frozen=True, kw_only=True):
    """What an apply would do, by name of deployments and policies.

    Attributes:
        field_changes: of deployments that exist, what differs from their present spec.
        replaces: number of placed instances that are replaced, of deployments that change to `replace`.
        generations: of the deployments, the state that was planned against; 0: it does not exist. An apply that expects
            it is refused where another one came between.
        policy_generations: the same of the policies.
        candidates: by deployment, the GPUs that could be selected by hand; empty where the request does not ask.
        policy_stops: what policies would stop at once; None: an older controller, which does not report it.
    """

    items: list[PlanItem]
    changes: dict[str, Literal["create", "replace", "update", "unchanged"]] = {}
    policy_changes: dict[str, Literal["create", "update", "unchanged"]] = {}
    warnings: list[str] = []  # such as unknown names of workers and GPUs; each begins with the deployment
    rollouts: dict[str, str] = {}  # of deployments that change to `replace`: how their instances would be replaced
    field_changes: dict[str, list[FieldChange]] = {}
    replaces: dict[str, int] = {}
    generations: dict[str, int] = {}
    policy_generations: dict[str, int] = {}
    candidates: dict[str, PlanCandidates] = {}
    policy_stops: PolicyStops | None = None
    policies: dict[str, PlannedPolicy] = {}  # the effective policy of each deployment; a missing key means none
