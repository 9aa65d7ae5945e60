"""Instances as the API returns them."""

from schemas.api.explain import Explain
from schemas.api.needs import LayoutView, NeedView
from schemas.api.policies import InstanceUtilization
from schemas.api.view import Literal, Moment, View

InstancePhaseName = Literal[
    "pending", "analyzing", "scheduled", "starting", "running", "unhealthy", "backoff", "succeeded", "failed",
    "unreachable", "replaced", "stopping",
]  # fmt: skip


class ClaimView(View, frozen=True, kw_only=True):
    """A claim of the instance. `health` is the device's; with anything but `ok`, `health_reason` says why."""

    device: str
    worker: str
    memory_mib: int
    exclusive: bool
    epoch: int
    rank: int = 0
    kind: Literal["gpu", "host"] = "gpu"
    health: Literal["ok", "unhealthy", "unknown"] = "ok"
    health_reason: str = ""


class InstanceSpecView(View, frozen=True, kw_only=True):
    """What the instance runs."""

    deployment: str
    deployment_uid: str
    revision: int
    engine: str
    runtime: str = "process"
    model: str | None = None


class InstanceStatus(View, frozen=True, kw_only=True):
    """The status of an instance.

    Attributes:
        engine: chosen with the placement.
        layout: chosen with the placement.
        need: the estimate.
        worker: of a gang the worker of the leader, rank 0.
        workers: by rank.
        gpus: UUIDs.
        image_digest: of the image that its container runs, of a gang the leader's; None: no container, or not known.
        not_before: it is not started again earlier.
        explain: why it is pending.
        utilization: the verdict of its utilization policy; None: it has no policy.
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
    image_digest: str | None = None
    claims: list[ClaimView] = []
    restarts: int = 0
    epoch: int = 0
    phase_since: Moment
    not_before: Moment | None = None
    explain: Explain | None = None
    utilization: InstanceUtilization | None = None


class InstanceView(View, frozen=True, kw_only=True):
    """An instance. Its name is its id."""

    kind: Literal["Instance"] = "Instance"
    name: str
    uid: str
    generation: int
    created_at: Moment
    deleted_at: Moment | None = None
    spec: InstanceSpecView
    status: InstanceStatus
