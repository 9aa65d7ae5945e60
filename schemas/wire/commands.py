"""Commands to start and stop processes, and their results."""

from typing import Annotated, Literal

from schemas.wire.base import BigInt, LongText, Since, Wire
from schemas.wire.containers import ContainerOrder


class ClaimOrder(Wire, frozen=True, kw_only=True):
    """A device that the process may use."""

    device: str
    memory_mib: int
    exclusive: bool


class GenerateOrder(Wire, frozen=True, kw_only=True):
    """A token is requested after `every_s` without a sign that the engine generates."""

    every_s: float
    timeout_s: float


class ProbeOrder(Wire, frozen=True, kw_only=True):
    """HTTP GET on the engine's port; 2xx is healthy. `failures` in a row make the process unhealthy."""

    path: str
    period_s: float
    timeout_s: float
    failures: int
    generate: Annotated[GenerateOrder | None, Since(4)] = None  # None: no tokens are requested


class SimulatedLoad(Wire, frozen=True, kw_only=True):
    """The readings of a simulated GPU while this process runs: (seconds, percent) steps, and memory."""

    utilization: tuple[tuple[float, float], ...]
    memory_mib: int | None = None


class ModelFetch(Wire, frozen=True, kw_only=True):
    """A model of the hub that must be on the host before the process starts.

    `by_folder`: the server takes no revision of it, so argv's `NAME=repo` gets the folder of this commit instead.
    `name`: the branch or tag of which `revision` is the kept commit.
    """

    repo: str
    revision: str = "main"
    by_folder: Annotated[bool, Since(5)] = False
    name: Annotated[str, Since(5)] = ""


class StartOrder(Wire, frozen=True, kw_only=True):
    """The start of one process.

    Placeholders in argv: {port}, {python} (the agent's interpreter), {simulated_engine} (argv[0] only).
    """

    deployment: str
    deployment_uid: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    claims: tuple[ClaimOrder, ...]  # GPUs only, in the order of the process
    needs_port: bool
    probe: ProbeOrder | None
    start_timeout_s: float
    liveness_timeout_s: float = 60.0
    drain_time_s: float
    stop_on_disconnect_after_s: float | None = None
    simulated_load: SimulatedLoad | None = None
    gpus_by_index: bool = False  # the engine does not support UUIDs and gets the GPUs' indices
    request_gauges: tuple[str, ...] = ()  # gauges of the engine's /metrics whose sum is the requests at once
    queue_gauges: Annotated[tuple[str, ...], Since(4)] = ()  # their sum: requests in the engine's own queue
    host_memory_mib: Annotated[int | None, Since(4)] = None  # limit of host memory by its user; None: none
    cache_gauges: Annotated[tuple[str, ...], Since(4)] = ()  # the share of its KV cache in use, 0 to 1
    progress_counters: Annotated[tuple[str, ...], Since(4)] = ()  # counters of its tokens, which rise while it works
    stalled_requests: Annotated[int, Since(4)] = 0  # this number without an answer makes it unhealthy; 0: never
    stalled_after_s: Annotated[float, Since(4)] = 120.0
    fetches: Annotated[tuple[ModelFetch, ...], Since(4)] = ()  # fetched by the agent, with the token in `env`
    container: Annotated[ContainerOrder | None, Since(4)] = None  # None: a process of the host
    secret_env: Annotated[tuple[str, ...], Since(4)] = ()  # names in `env` whose values are secrets
    reads: Annotated[tuple[str, ...], Since(5)] = ()  # folders and files of the host: models, adapters
    receipt: Annotated[str, Since(5)] = ""  # kept by the agent, and sent in its hello while the process lives


class StopOrder(Wire, frozen=True, kw_only=True):
    """A graceful stop: no new requests, then SIGTERM; after `drain_time_s`, SIGKILL of the process group."""

    drain_time_s: float
    reason: str = ""


class Command(Wire, frozen=True, kw_only=True, tag="command"):
    """An idempotent command. `term` is stamped at dispatch."""

    command_id: int
    term: int
    instance: str
    epoch: int
    rank: int = 0
    verb: Literal["start", "stop"]
    start: StartOrder | None = None
    stop: StopOrder | None = None


class CommandResult(Wire, frozen=True, kw_only=True, tag="result"):
    """The agent's answer to a command, sent after the journal's write."""

    command_id: BigInt
    outcome: Literal["accepted", "refused"]
    code: Literal["", "old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"] = ""
    message: LongText = ""
