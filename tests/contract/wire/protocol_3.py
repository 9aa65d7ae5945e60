"""The wire of protocol 3 as it was before protocols were negotiated: unknown keys are refused. Frozen: never edit it.

Agents and controllers of that time read with these models, so what is sent to them must parse here.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


PROTOCOL: Final = 3
HEARTBEAT_S: Final = 5.0
SAMPLE_S: Final = 10.0
ProcessState = Literal["starting", "running", "unhealthy", "stopping", "exited"]
ExitReason = Literal[
    "exit", "stopped", "spawn_failed", "start_timeout", "liveness", "agent_stopped", "disconnected", "gone"
]
Health = Literal["ok", "unhealthy", "unknown"]
Vendor = Literal["nvidia", "amd", "apple"]


class ReportedGpu(Wire):
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


class ReportedHost(Wire):
    os: str
    arch: str
    hostname: str
    driver: str | None = None
    memory_mib: int
    reserved_mib: int = 0
    cpu_milli: int
    simulated: bool = False
    labels: dict[str, str] = {}
    engines: tuple[str, ...] | None = None


class Inventory(Wire):
    host: ReportedHost
    gpus: tuple[ReportedGpu, ...] | None


class ProcessReport(Wire):
    type: Literal["process"] = "process"
    instance: str
    epoch: int
    rank: int = 0
    seq: int
    state: ProcessState
    reason: ExitReason | None = None
    exit_code: int | None = None
    message: str = ""
    pid: int | None = None
    ready: bool = False


class Hello(Wire):
    type: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    agent_version: str
    boot_id: str
    highest_term: int = 0
    report_seq: int | None = None
    advertise: str | None = None
    proxy_port: int
    sent_s: float | None = None
    inventory: Inventory
    processes: tuple[ProcessReport, ...]


class Heartbeat(Wire):
    type: Literal["heartbeat"] = "heartbeat"
    seq: int
    sent_s: float | None = None
    gpus: tuple[ReportedGpu, ...] | None


class InventoryChanged(Wire):
    type: Literal["inventory"] = "inventory"
    inventory: Inventory


class Readings(Wire):
    mean: float
    max: float


class GpuSample(Readings):
    uuid: str
    used_mib: int | None = None


class ProcessSample(Wire):
    instance: str
    epoch: int
    rank: int = 0
    utilization: dict[str, Readings | None] = {}
    requests: int | None = None


class SamplePeriod(Wire):
    seq: int
    sampled_s: float
    period_s: float
    gpus: tuple[GpuSample, ...]
    processes: tuple[ProcessSample, ...] = ()


class Samples(Wire):
    type: Literal["samples"] = "samples"
    sent_s: float
    periods: tuple[SamplePeriod, ...]


class CommandResult(Wire):
    type: Literal["result"] = "result"
    command_id: int
    outcome: Literal["accepted", "refused"]
    code: Literal["", "old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"] = ""
    message: str = ""


class Goodbye(Wire):
    type: Literal["goodbye"] = "goodbye"


class ClaimOrder(Wire):
    device: str
    memory_mib: int
    exclusive: bool


class ProbeOrder(Wire):
    path: str
    period_s: float
    timeout_s: float
    failures: int


class SimulatedLoad(Wire):
    utilization: tuple[tuple[float, float], ...]
    memory_mib: int | None = None


class StartOrder(Wire):
    deployment: str
    deployment_uid: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    claims: tuple[ClaimOrder, ...]
    needs_port: bool
    probe: ProbeOrder | None
    start_timeout_s: float
    liveness_timeout_s: float = 60.0
    drain_time_s: float
    stop_on_disconnect_after_s: float | None = None
    simulated_load: SimulatedLoad | None = None
    gpus_by_index: bool = False
    request_gauges: tuple[str, ...] = ()


class StopOrder(Wire):
    drain_time_s: float
    reason: str = ""


class Command(Wire):
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
    type: Literal["welcome"] = "welcome"
    worker: str
    session: int
    term: int
    heartbeat_s: float = HEARTBEAT_S
    sample_s: float = SAMPLE_S
    proxy_secret: str


class ReportAck(Wire):
    type: Literal["report_ack"] = "report_ack"
    seq: int


class SamplesAck(Wire):
    type: Literal["samples_ack"] = "samples_ack"
    seq: int


class Rejected(Wire):
    type: Literal["rejected"] = "rejected"
    message: str
    final: bool = False


class JoinRequest(Wire):
    token: Annotated[str, Field(max_length=512)]
    name: Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
    agent_version: str = ""


class JoinResponse(Wire):
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
