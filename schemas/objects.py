"""What the API returns: objects `{kind, name, uid, generation, created_at, deleted_at, spec, status}` and envelopes."""

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from schemas.base import View
from schemas.manifest import DeploymentSpec
from schemas.needs import LayoutView, NeedView
from schemas.policy_objects import DeploymentPolicy, InstanceUtilization

DeploymentPhaseName = Literal[
    "pending", "progressing", "running", "degraded", "stopped", "succeeded", "failed", "deleting"
]
InstancePhaseName = Literal[
    "pending", "analyzing", "scheduled", "starting", "running", "unhealthy", "backoff", "succeeded", "failed",
    "unreachable", "replaced", "stopping",
]  # fmt: skip
WorkerPhaseName = Literal["joining", "ready", "unreachable", "lost"]


class Condition(View):
    """An independent fact about an object, with its reason."""

    type: str
    status: Literal["true", "false", "unknown"]
    reason: str = ""
    message: str = ""
    since: datetime | None = None


class IntentView(View):
    """A limit on the wanted replicas, by its source."""

    source: Literal["user", "policy", "autoscaler"]
    max_replicas: int
    reason: str = ""
    message: str = ""
    created_at: datetime


class NearestMiss(View):
    """The worker that came closest, in numbers (GiB, two decimals)."""

    worker: str
    code: str
    need_gib: float | None = None
    free_gib: float | None = None
    message: str = ""


class TriedLayout(View):
    """A way to spread an instance that is ruled out whatever is free."""

    gpus: int
    tp: int
    reason: str


class Explain(View):
    """Why an instance waits: workers looked at, how many fit, how many fell to which reason, the nearest miss.

    `tried` are layouts for which there would be hosts, had the model another shape; `advice` is what would make it fit,
    each line tried out with the scheduler itself. Both are empty where nobody has asked for them.
    """

    workers: int
    fit: int = 0
    rejected: dict[str, int] = {}
    nearest: NearestMiss | None = None
    gpus: int = 0
    unknown: list[str] = []  # workers and GPUs named by hand that nobody knows
    note: str = ""  # of its turn: for whom room is kept, whom it pushes out
    tried: list[TriedLayout] = []
    advice: list[str] = []
    message: str = ""  # one line: `0/12 fit: 8 need_gt_free (need 38 GiB, best free 22.1 on gpu-7), 3 not_ready`


class DeploymentStatus(View):
    """Derived by the reconciler. `ready` counts running instances; `policy` is the utilization policy that applies."""

    phase: DeploymentPhaseName
    reason: str = ""
    message: str = ""
    ready: int = 0
    wanted: int = 0
    observed_generation: int = 0
    revision: int = 1
    conditions: list[Condition] = []
    intents: list[IntentView] = []
    policy: DeploymentPolicy | None = None


class DeploymentView(View):
    """A deployment."""

    kind: Literal["Deployment"] = "Deployment"
    name: str
    uid: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None = None
    spec: DeploymentSpec
    status: DeploymentStatus


class ClaimView(View):
    """One claim of an instance, seen from the instance."""

    device: str
    worker: str
    memory_mib: int
    exclusive: bool
    epoch: int
    rank: int = 0
    kind: Literal["gpu", "host"] = "gpu"


class InstanceSpecView(View):
    """What an instance is of."""

    deployment: str
    deployment_uid: str
    revision: int
    engine: str
    model: str | None = None


class InstanceStatus(View):
    """Where an instance stands. `utilization` is how its policy judges it; None where none does.

    `engine` and `layout` are as chosen with its place; `need` is what it was worked out to need.
    """

    phase: InstancePhaseName
    reason: str = ""
    message: str = ""
    engine: str | None = None
    layout: LayoutView | None = None
    need: NeedView | None = None
    worker: str | None = None
    workers: list[str] = []
    gpus: list[str] = []
    claims: list[ClaimView] = []
    restarts: int = 0
    epoch: int = 0
    phase_since: datetime
    not_before: datetime | None = None
    explain: Explain | None = None
    utilization: InstanceUtilization | None = None


class InstanceView(View):
    """An instance; its name is its id."""

    kind: Literal["Instance"] = "Instance"
    name: str
    uid: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None = None
    spec: InstanceSpecView
    status: InstanceStatus


class WorkerSpecView(View):
    """What the operator decided about a worker."""

    cordoned: bool = False
    draining: bool = False


class WorkerStatus(View):
    """What is known of a worker. `state` is what an operator reads: drained, draining, cordoned or the phase.

    `memory_mib`, `claimed_mib` and `free_mib` are of its GPUs together. What is free can be claimed: see `GpuStatus`.
    """

    phase: WorkerPhaseName
    state: str
    reason: str = ""
    conditions: list[Condition] = []
    connected: bool = False
    last_seen: datetime | None = None
    os: str = ""
    arch: str = ""
    driver: str | None = None
    hostname: str = ""
    agent_version: str = ""
    simulated: bool = False
    labels: dict[str, str] = {}
    gpus: int = 0
    gpus_known: bool = False
    memory_mib: int = 0
    claimed_mib: int = 0
    free_mib: int = 0
    host_memory_mib: int = 0
    free_host_memory_mib: int = 0
    cpu_milli: int = 0
    free_cpu_milli: int = 0
    instances: int = 0
    proxy_address: str = ""
    fence_until: datetime | None = None


class WorkerView(View):
    """A worker."""

    kind: Literal["Worker"] = "Worker"
    name: str
    uid: str
    generation: int = 1
    created_at: datetime
    deleted_at: datetime | None = None
    spec: WorkerSpecView
    status: WorkerStatus


class GpuClaimView(View):
    """One claim on a GPU, seen from the GPU."""

    instance: str
    deployment: str
    memory_mib: int
    exclusive: bool
    epoch: int


class GpuStatus(View):
    """What is known of a GPU. `utilization` in percent; None is unknown.

    Attributes:
        free_mib: what one more claim could have: the memory less what is claimed, reserved and foreign.
        reserved_mib: kept back by the host's operator; who takes the GPU whole takes it too.
        foreign_mib: measured to be in use, and no claim explains it.
    """

    worker: str
    index: int
    model: str
    memory_mib: int
    free_mib: int
    claimed_mib: int = 0
    reserved_mib: int = 0
    foreign_mib: int = 0
    health: Literal["ok", "unhealthy", "unknown"]
    health_reason: str = ""
    compute_capability: str | None = None
    mig_mode: bool = False
    present: bool = True
    used_mib: int | None = None
    utilization: float | None = None
    claims: list[GpuClaimView] = []


class GpuView(View):
    """A GPU; its name is its UUID."""

    kind: Literal["Gpu"] = "Gpu"
    name: str
    uid: str
    generation: int = 1
    created_at: datetime | None = None
    deleted_at: datetime | None = None
    spec: dict[str, Any] = {}
    status: GpuStatus


class EventView(View):
    """An append-only fact."""

    id: int
    at: datetime
    reason: str
    message: str
    evidence: dict[str, Any] = {}
    objects: list[str] = []


class LeaderView(View):
    """Who leads. `leader` is this controller's view of the lease row."""

    holder: str
    term: int
    renewed_at: datetime | None
    leading: bool  # the controller that answers is the leader


class AuditViolation(View):
    """One row that breaks an invariant."""

    invariant: str
    message: str
    evidence: dict[str, Any] = {}


class AuditView(View):
    """The invariants, run as SQL. Empty is well."""

    ok: bool
    checked: list[str]
    violations: list[AuditViolation] = []


class ErrorBody(View):
    """`code` is for programs, `message` for people, `details` for both."""

    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorView(View):
    """Every refusal looks like this."""

    error: ErrorBody


T = TypeVar("T")


class Page(View, Generic[T]):
    """A page of a list; `next` is the cursor of the following one."""

    items: list[T]
    next: str | None = None


class WatchEvent(View):
    """One server-sent event: `snapshot` first, then `changed` or `gone` objects."""

    type: Literal["snapshot", "changed", "gone"]
    object: DeploymentView | InstanceView | WorkerView | dict[str, Any]


class ScaleRequest(View):
    """Body of `POST /deployments/{name}/scale`."""

    replicas: int = Field(ge=0, le=100_000)
