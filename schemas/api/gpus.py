"""GPUs as the API returns them, and all of them in columns, as for a map."""

from schemas.api.view import Literal, Moment, View
from schemas.wire import GpuDetails

MapGpuState = Literal["ok", "unknown", "cordoned", "mig_mode", "unhealthy", "absent"]


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


class MapWorkers(View, frozen=True, kw_only=True):
    """All workers by name. Entry `i` of each column is of worker `i`.

    Attributes:
        state: as in `WorkerStatus`.
        reason: why, as a code: of the state, else of the first condition that does not hold; empty: none.
        message: the same in words; None: there is nothing to say.
        since: when the state began; None: unknown, as of what an operator has set.
        connected: whether its agent is connected.
        instances: that hold claims there.
    """

    name: list[str]
    state: list[str]
    reason: list[str]
    message: list[str | None]
    since: list[Moment | None]
    connected: list[bool]
    cordoned: list[bool]
    draining: list[bool]
    instances: list[int]
    labels: list[dict[str, str]]


class MapGpus(View, frozen=True, kw_only=True):
    """All GPUs by worker and index. Entry `i` of each column is of GPU `i`. The figures are those of `GpuStatus`.

    Attributes:
        worker: its number in `workers`.
        model: its number in `models`.
        memory_free_bytes: the most that one more claim could have.
        memory_used_bytes: measured; None is unknown.
        utilization: percent; None: no sample of the last 30 s.
        state: the gravest that holds: `absent`, `unhealthy`, `mig_mode` (its slices are claimed in its stead),
            `cordoned`, `unknown` (its health is), `ok`.
        message: why it is unhealthy or of unknown health; None: there is nothing to say.
        cordoned: by an operator, whatever its state is.
        holder: the deployment that alone holds claims on it; None: none does, or several do.
        holders: number of instances with claims on it.
        exclusive: whether one of them has the whole GPU.
    """

    worker: list[int]
    index: list[int]
    uuid: list[str]
    model: list[int]
    memory_total_bytes: list[int]
    memory_claimed_bytes: list[int]
    memory_free_bytes: list[int]
    memory_used_bytes: list[int | None]
    utilization: list[float | None]
    state: list[MapGpuState]
    message: list[str | None]
    cordoned: list[bool]
    holder: list[str | None]
    holders: list[int]
    exclusive: list[bool]


class MapView(View, frozen=True, kw_only=True):
    """All workers and GPUs at one moment."""

    at: Moment
    workers: MapWorkers
    gpus: MapGpus
    models: list[str]
