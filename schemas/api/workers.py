"""Workers as the API returns them."""

from schemas.api.envelopes import Condition
from schemas.api.view import Literal, Moment, View

WorkerPhaseName = Literal["joining", "ready", "unreachable", "lost"]


class RuntimeView(View, frozen=True, kw_only=True):
    """What a worker can run besides processes of its host.

    Attributes:
        name: as in manifests: `docker`.
        usable: whether containers run there.
        gpus: whether they can have its GPUs.
        reason: why not, in the words of its agent.
        version: of the Docker engine.
    """

    name: str
    usable: bool = False
    gpus: bool = False
    reason: str = ""
    version: str = ""


class EngineView(View, frozen=True, kw_only=True):
    """An engine that is installed on a worker.

    Attributes:
        name: as in manifests.
        version: of its program; None: unknown.
    """

    name: str
    version: str | None = None


class WorkerSpecView(View, frozen=True, kw_only=True):
    """What an operator has set for the worker.

    Attributes:
        drain_until: replacements of what runs there start first until then; None: no drain waits.
        restart_tasks: tasks that never restart are stopped after that, and start elsewhere.
    """

    cordoned: bool = False
    draining: bool = False
    drain_until: Moment | None = None
    restart_tasks: bool = False


class WorkerStatus(View, frozen=True, kw_only=True):
    """The status of a worker.

    Attributes:
        state: for operators: `drained`, `draining`, `cordoned`, `quarantined`, else the phase.
        protocol: of the agent's newest connection; None: it has not connected since this field exists.
        runtimes: besides processes of the host; empty: none, or its agent does not say.
        engines: that are installed; None: its agent does not report them.
        gpus_known: whether the GPUs could be read; if not, `gpus` is unknown.
        memory_mib, claimed_mib, free_mib: of all its GPUs together; `free_mib` as in `GpuStatus`.
        fence_until: nothing of a lost worker runs after this; None: unknown.
    """

    phase: WorkerPhaseName
    state: str
    reason: str = ""
    conditions: list[Condition] = []
    connected: bool = False
    last_seen: Moment | None = None
    os: str = ""
    arch: str = ""
    driver: str | None = None
    hostname: str = ""
    agent_version: str = ""
    protocol: int | None = None
    simulated: bool = False
    labels: dict[str, str] = {}
    runtimes: list[RuntimeView] = []
    engines: list[EngineView] | None = None
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
    fence_until: Moment | None = None


class DrainStepView(View, frozen=True, kw_only=True):
    """What a drain does to one instance.

    Attributes:
        workers: where it runs now.
        action: `moves`: its replacement starts first. `stops`: it stops at once, and starts elsewhere where its spec
            allows that. `stays`: it runs until it ends.
        to_workers: where it would start now; empty: it stays, or fits nowhere.
        fits: whether there is a place for it now; None: it stays.
        message: what happens and when, in words.
    """

    instance: str
    deployment: str
    workers: list[str]
    action: Literal["moves", "stops", "stays"]
    to_workers: list[str] = []
    fits: bool | None = None
    message: str = ""


class DrainPlanView(View, frozen=True, kw_only=True):
    """What a drain would do, by instance. Nothing is changed."""

    items: list[DrainStepView] = []


class WorkerView(View, frozen=True, kw_only=True):
    """A worker."""

    kind: Literal["Worker"] = "Worker"
    name: str
    uid: str
    generation: int = 1
    created_at: Moment
    deleted_at: Moment | None = None
    spec: WorkerSpecView
    status: WorkerStatus
