"""What agent and controller say to each other over one WebSocket: JSON objects told apart by `type`.

Every message may be repeated, late or lost; a process report carries a sequence number that rises over the agent's
life, and the newest one wins. `PROTOCOL` rises when an older peer could misunderstand.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Wire

PROTOCOL: Final = 3
MAX_MESSAGE_BYTES: Final = 8 * 2**20
HEARTBEAT_S: Final = 5.0
SAMPLE_S: Final = 10.0

ProcessState = Literal["starting", "running", "unhealthy", "stopping", "exited"]
ExitReason = Literal[
    "exit",  # it ended by itself
    "stopped",  # a stop command
    "spawn_failed",  # it could not be started at all
    "start_timeout",  # no progress for the start timeout
    "liveness",  # it stopped answering its probe
    "agent_stopped",  # the agent was shut down cleanly, and its engines with it
    "disconnected",  # stop_on_disconnect_after
    "gone",  # the agent knows of no such process: never started here, or dead before it could be watched
]
Health = Literal["ok", "unhealthy", "unknown"]
Vendor = Literal["nvidia", "amd", "apple"]


class DeviceFacts(Wire):
    """One GPU as the agent reads it. Sizes in MiB, utilization in percent; None is unknown, never zero.

    `reserved_mib` of the whole `memory_mib` the host's operator keeps back from placement.
    """

    uuid: str
    index: int
    model: str
    vendor: Vendor = "nvidia"
    memory_mib: int
    reserved_mib: int = 0
    compute_capability: str | None = None
    health: Health = "ok"
    health_reason: str = ""
    mig_mode: bool = False
    used_mib: int | None = None
    utilization: float | None = None


class HostFacts(Wire):
    """The host itself. `reserved_mib` of its memory the operator keeps back from placement."""

    os: str
    arch: str
    hostname: str
    driver: str | None = None
    memory_mib: int
    reserved_mib: int = 0
    cpu_milli: int
    simulated: bool = False
    labels: dict[str, str] = {}
    engines: tuple[str, ...] | None = None  # installed servers of models, as manifests name them; None: not known


class Inventory(Wire):
    """Facts of host and GPUs. `gpus` None: the GPUs could not be read (unknown, not empty)."""

    host: HostFacts
    gpus: tuple[DeviceFacts, ...] | None


class ProcessReport(Wire):
    """Where one process stands. The key is (instance, epoch, rank)."""

    type: Literal["process"] = "process"
    instance: str
    epoch: int
    rank: int = 0
    seq: int
    state: ProcessState
    reason: ExitReason | None = None
    exit_code: int | None = None  # negative: killed by that signal, as in Python's subprocess
    message: str = ""
    pid: int | None = None
    ready: bool = False  # the probe was answered at least once


class Hello(Wire):
    """First message of a connection: the agent's whole picture. `sent_s`: on the clock of its samples."""

    type: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    agent_version: str
    boot_id: str
    highest_term: int = 0
    report_seq: int | None = None  # the newest number of a report: what has a newer one, this picture knows nothing of
    advertise: str | None = None  # HOST:PORT of the proxy; host None: the address that the agent dials from
    proxy_port: int
    sent_s: float | None = None
    inventory: Inventory
    processes: tuple[ProcessReport, ...]


class Heartbeat(Wire):
    """Every `HEARTBEAT_S`. Carries the readings; `gpus` None: could not be read. `sent_s` as in hello."""

    type: Literal["heartbeat"] = "heartbeat"
    seq: int
    sent_s: float | None = None
    gpus: tuple[DeviceFacts, ...] | None


class InventoryChanged(Wire):
    """The host or the set of its GPUs is no longer what hello said."""

    type: Literal["inventory"] = "inventory"
    inventory: Inventory


class Readings(Wire):
    """Mean and maximum, in percent, of the readings of one sampling period."""

    mean: float
    max: float


class GpuSample(Readings):
    """One GPU over one sampling period. A GPU that could not be read in it has no sample."""

    uuid: str
    used_mib: int | None = None


class ProcessSample(Wire):
    """One process (the key is instance, epoch, rank) over one sampling period.

    Attributes:
        utilization: of this process's tree alone, by UUID of each GPU that it claims; None: the driver does not tell.
        requests: most that were in flight or waiting at once; None is unknown.
    """

    instance: str
    epoch: int
    rank: int = 0
    utilization: dict[str, Readings | None] = {}
    requests: int | None = None


class SamplePeriod(Wire):
    """What was read in one sampling period. `seq` rises over the agent's life between two boots of its host.

    Attributes:
        sampled_s: the period's end on the agent's monotonic clock (seconds since the host's boot).
        period_s: length of a sampling period.
    """

    seq: int
    sampled_s: float
    period_s: float
    gpus: tuple[GpuSample, ...]
    processes: tuple[ProcessSample, ...] = ()


class Samples(Wire):
    """Sampling periods that the controller has not acknowledged, oldest first.

    A sample's time is the time of receipt less (`sent_s` - `sampled_s`). Wall clocks of hosts never count.
    """

    type: Literal["samples"] = "samples"
    sent_s: float
    periods: tuple[SamplePeriod, ...]


class CommandResult(Wire):
    """The agent's answer to a command, after it was journalled."""

    type: Literal["result"] = "result"
    command_id: int
    outcome: Literal["accepted", "refused"]
    code: Literal["", "old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"] = ""
    message: str = ""


class Goodbye(Wire):
    """A clean shutdown: the connection ends on purpose."""

    type: Literal["goodbye"] = "goodbye"


class ClaimOrder(Wire):
    """A device that the process may use."""

    device: str
    memory_mib: int
    exclusive: bool


class ProbeOrder(Wire):
    """HTTP GET on the engine's port; 2xx is well. `failures` in a row make it unhealthy."""

    path: str
    period_s: float
    timeout_s: float
    failures: int


class SimulatedLoad(Wire):
    """What a simulated GPU reports while this process runs and is loaded: percent, or (seconds, percent) steps."""

    utilization: tuple[tuple[float, float], ...]
    memory_mib: int | None = None


class StartOrder(Wire):
    """Everything needed to start one process.

    Placeholders in argv: {port}, {python} (the agent's interpreter), {simulated_engine} (argv[0] only).
    """

    deployment: str
    deployment_uid: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    claims: tuple[ClaimOrder, ...]  # GPUs only, in the order in which the process shall see them
    needs_port: bool
    probe: ProbeOrder | None
    start_timeout_s: float
    liveness_timeout_s: float = 60.0
    drain_time_s: float
    stop_on_disconnect_after_s: float | None = None
    simulated_load: SimulatedLoad | None = None
    gpus_by_index: bool = False  # the process knows no GPU by its UUID: it is told their numbers on the host
    request_gauges: tuple[str, ...] = ()  # on the engine's /metrics: requests in flight or waiting are their sum


class StopOrder(Wire):
    """Stop gracefully: no new requests, SIGTERM, after `drain_time_s` SIGKILL of the whole group."""

    drain_time_s: float
    reason: str = ""


class Command(Wire):
    """An idempotent order. `term` is stamped at delivery."""

    type: Literal["command"] = "command"
    command_id: int
    term: int
    instance: str
    epoch: int
    rank: int = 0
    verb: Literal["start", "stop"]
    start: StartOrder | None = None
    stop: StopOrder | None = None


class Welcome(Wire):
    """Answer to hello: who the agent is here."""

    type: Literal["welcome"] = "welcome"
    worker: str
    session: int
    term: int
    heartbeat_s: float = HEARTBEAT_S
    sample_s: float = SAMPLE_S
    proxy_secret: str


class ReportAck(Wire):
    """Process reports up to `seq` are durable; exited processes among them may be forgotten."""

    type: Literal["report_ack"] = "report_ack"
    seq: int


class SamplesAck(Wire):
    """Sampling periods up to `seq` are durable, and need not be kept."""

    type: Literal["samples_ack"] = "samples_ack"
    seq: int


class Rejected(Wire):
    """The controller will not serve this connection; `final` means: do not dial again with this credential."""

    type: Literal["rejected"] = "rejected"
    message: str
    final: bool = False


class JoinRequest(Wire):
    """`POST /api/v1/join`: a one-time token for a per-worker credential."""

    token: Annotated[str, Field(max_length=512)]
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
    agent_version: str = ""


class JoinResponse(Wire):
    """The credential is shown this once; the controller keeps its hash."""

    worker: str
    worker_uid: str
    credential: str


AgentMessage = Annotated[
    Hello | Heartbeat | InventoryChanged | ProcessReport | Samples | CommandResult | Goodbye,
    Field(discriminator="type"),
]
ControllerMessage = Annotated[Welcome | Command | ReportAck | SamplesAck | Rejected, Field(discriminator="type")]
agent_message: Final[TypeAdapter[Any]] = TypeAdapter(AgentMessage)
controller_message: Final[TypeAdapter[Any]] = TypeAdapter(ControllerMessage)

# Paths and headers of the two HTTP surfaces between them.
CONNECT_PATH: Final = "/api/v1/agents/connect"  # WebSocket; Authorization: Bearer <credential>
JOIN_PATH: Final = "/api/v1/join"
PROXY_ENGINE_PREFIX: Final = "/engines"  # agent: /engines/{instance}/{path...}; Authorization: Bearer <proxy_secret>
# On what the proxy itself answers instead of an engine; engines' own answers never carry it.
PROXY_REFUSAL_HEADER: Final = "X-Gpuward-Refusal"
PROXY_LOGS_PREFIX: Final = "/logs"  # agent: /logs/{instance}?tail=N&follow=1&previous=1
