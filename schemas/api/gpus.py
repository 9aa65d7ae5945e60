"""GPUs as the API returns them."""

from schemas.api.view import Literal, Moment, View
from schemas.wire import GpuDetails


class GpuClaimView(View, frozen=True, kw_only=True):
    """A claim on the GPU."""

    instance: str
    deployment: str
    memory_mib: int
    exclusive: bool
    epoch: int


class GpuStatus(View, frozen=True, kw_only=True):
    """The status of a GPU.

    Attributes:
        free_mib: the most that one more claim could have: the memory less what is claimed, reserved and foreign.
        reserved_mib: kept back by the operator of the host. An instance that takes the whole GPU takes it too.
        foreign_mib: measured to be in use, but not explained by a claim.
        used_mib: measured; None is unknown.
        utilization: percent; None is unknown.
        parent: the GPU of which it is a MIG slice.
        details: what else is read of it; None: nothing, or not lately.
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
    parent: str | None = None
    details: GpuDetails | None = None
    claims: list[GpuClaimView] = []


class GpuSpecView(View, frozen=True, kw_only=True):
    """What an operator wants of a GPU: `cordoned`: nothing new is placed on it."""

    cordoned: bool = False


class GpuView(View, frozen=True, kw_only=True):
    """A GPU. Its name is its UUID."""

    kind: Literal["Gpu"] = "Gpu"
    name: str
    uid: str
    generation: int = 1
    created_at: Moment | None = None
    deleted_at: Moment | None = None
    spec: GpuSpecView = GpuSpecView()
    status: GpuStatus
