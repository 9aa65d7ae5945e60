"""The engine protocol: where an engine runs, what it needs, how it is started and probed."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from controller.domain.placement import Compatibility, Need
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import GenerateOrder, ModelFetch, ProbeOrder, SimulatedLoad

LOOPBACK: Final = "127.0.0.1"
IN_CONTAINER: Final = "{host}"  # filled in by the agent: all addresses on a bridge, loopback on the host's network
_GGUF_PART: Final = re.compile(r"(?P<name>.*)-[0-9]{5}-of-(?P<parts>[0-9]{5})\.gguf")
SERVES_AT_ONCE: Final = 256  # of a server that does not report it


class SpecError(ValueError):
    """A spec that cannot work. The message starts with the field and includes the fix."""


class RefusedFlagError(SpecError):
    """A flag that an apply refuses. A spec that an earlier version stored continues running with it."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Work for a child that can be killed. The need follows from its result."""

    target: str  # "module:function" to run
    payload: Mapping[str, Any]  # its argument, JSON
    deadline_s: float  # limit of its run
    memory_bytes: int  # limit of its address space
    hashed_as: str  # the target's name in stored input hashes, which stays when the target is renamed


@dataclass(frozen=True, slots=True)
class Launch:
    """The placement of one process of an instance. Memory is that of each GPU."""

    gpu_count: int = 0  # of this process
    memory_mib: int = 0  # claimed
    gpu_mib: int = 0  # memory of the largest GPU, so that a share of it never exceeds the claim; 0: unknown
    others_mib: int = 0  # the most that other instances claim of one GPU
    exclusive: bool = False
    need_mib: int = 0  # estimated or stated; less than an exclusive claim
    tp: int = 1  # degrees over all processes
    pp: int = 1
    dp: int = 1
    workers: int = 1  # number of processes, one on each worker
    rank: int = 0  # of this process; the leader has rank 0
    leader: str = ""  # host name or address at which the other ranks reach the leader; empty if there are none
    rendezvous_port: int = 0  # on the leader's host, where the ranks of a gang meet
    activation_mib: int = 0  # for activations, by the need; 0: unknown
    context: int | None = None  # for which the need was estimated; None: no estimate
    sequences: int | None = None  # for which the need was estimated; None: no estimate
    name: str = ""  # of the deployment, for answers; empty: unknown
    host: str = LOOPBACK  # the address to listen on
    builds: frozenset[str] = frozenset()  # the worker's engines and their builds
    cache_mib: int = 0  # of the claim, for the cache; 0: unknown
    block_bytes: int = 0  # of a cache block, of which each running sequence needs one; 0: no such blocks


class ServerMetrics(NamedTuple):
    """Names of samples on a server's /metrics."""

    request_gauges: tuple[str, ...] = ()  # their sum is the requests in flight or queued
    queue_gauges: tuple[str, ...] = ()  # the requests in the server's own queue
    cache_gauges: tuple[str, ...] = ()  # the share of its KV cache that is in use
    progress_counters: tuple[str, ...] = ()  # of tokens: while one of them rises, the server makes progress


NO_METRICS: Final = ServerMetrics()


@dataclass(frozen=True, slots=True)
class Server:
    """The properties of a server program, for any model."""

    compatibility: Compatibility = Compatibility()  # noqa: RUF009 - it is frozen
    metrics: ServerMetrics = NO_METRICS


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The start of one process of an instance.

    The agent fills in {port} and {simulated_engine}, and in a container {host}.
    """

    argv: tuple[str, ...]
    needs_port: bool
    env: Mapping[str, str] = field(default_factory=dict)  # the spec's env overrides it
    probe: ProbeOrder | None = None
    simulated_load: SimulatedLoad | None = None
    # The `model` that the server expects in a request; None: any, so the deployment's name is used.
    request_model: str | None = None
    metrics: ServerMetrics = NO_METRICS
    serves_at_once: int = SERVES_AT_ONCE  # requests that it processes at once; more wait in its own queue
    gpus_by_index: bool = False  # it accepts indices, not UUIDs
    # The spec's adapters by name, each with its `model` in requests.
    adapters: Mapping[str, str] = field(default_factory=dict)
    fetches: tuple[ModelFetch, ...] = ()  # from the hub to the host


class Engine(ABC):
    """One engine. All methods are pure and fast. `validate` has passed before any other is called."""

    name: str
    # flags that identify the engine with `engine: auto`
    own_flags: frozenset[str] = frozenset()
    splits_models: bool = False  # the degrees are on its command line
    server: Server = Server()

    @abstractmethod
    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError if the engine cannot run this spec."""

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:  # noqa: ARG002 - the same for every spec
        return self.server.compatibility

    @abstractmethod
    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """GPU counts on one worker to try, best first, if the spec states none; (0,): no GPU."""

    @abstractmethod
    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """The analysis for the child; None if the need is known at once."""

    @abstractmethod
    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The need by the result of the analysis (None if there was none)."""

    def assumed(self, spec: DeploymentSpec) -> Need | None:  # noqa: ARG002 - an engine that reads no files
        """The need by the spec alone, for when the model's files cannot be read; None if the spec is not enough."""
        return None

    @abstractmethod
    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """The process with this placement."""

    def chosen(self, name: str) -> "Engine":  # noqa: ARG002 - most engines represent only themselves
        """The engine of that name among those that this engine represents. An empty name means its default."""
        return self


def probe_order(spec: DeploymentSpec, default_path: str | None) -> ProbeOrder | None:
    """The spec's probe, else the engine's default."""
    if spec.probe is not None:
        probe = spec.probe
        generate = GenerateOrder(every_s=probe.generate_every, timeout_s=probe.generate_timeout)
        return ProbeOrder(
            path=probe.path,
            period_s=probe.period,
            timeout_s=probe.timeout,
            failures=probe.failures,
            generate=generate if probe.generate else None,
        )
    if default_path is None:
        return None
    return ProbeOrder(path=default_path, period_s=5.0, timeout_s=3.0, failures=3)


def model_reference(spec: DeploymentSpec) -> str | None:
    """The model without its scheme: /dir for path:/dir, org/name@rev for hf:org/name@rev."""
    return None if spec.model is None else spec.model.partition(":")[2]


def adapter_places(spec: DeploymentSpec) -> dict[str, str]:
    """The adapters of `serving` by name: folders, and names on the hub without scheme and commit."""
    places = {name: place.partition(":") for name, place in spec.serving.adapters.items()}
    return {name: place.partition("@")[0] if scheme == "hf" else place for name, (scheme, _, place) in places.items()}


def models_of_host(spec: DeploymentSpec, engine: Engine) -> Iterator[str]:
    """The folders and files of the host that the engine reads: the model, its adapters and its draft model."""
    if spec.model is not None and not spec.model.startswith("hf:"):
        yield from _gguf_parts(model_reference(spec) or "")
    work = engine.analysis(spec)
    payload: Mapping[str, Any] = {} if work is None else work.payload
    for source in (*payload.get("adapters", ()), payload.get("draft", {})):
        for kind in ("path", "gguf"):
            if kind in source:
                yield from _gguf_parts(source[kind])
    yield from (place for place in adapter_places(spec).values() if place.startswith("/"))


def _gguf_parts(path: str) -> Iterator[str]:
    """The path; for one part of a GGUF file, the paths of all parts."""
    match = _GGUF_PART.fullmatch(path)
    if match is None:
        yield path
        return
    parts = int(match["parts"])
    yield from (f"{match['name']}-{number:05}-of-{parts:05}.gguf" for number in range(1, min(parts, 1000) + 1))


def refuse_splits(spec: DeploymentSpec, engine: str, adapters: str) -> None:
    """For engines that run on one worker, without parallel degrees, and without adapters chosen by a request's `model`.

    Raises:
        SpecError: the spec has one of these; `adapters` is the message about adapters.
    """
    if spec.parallel.world is not None:
        raise SpecError(f"parallel: engine {engine} does not support these degrees; remove them, or set resources.gpus")
    if spec.resources.max_workers > 1:
        raise SpecError(f"resources.max_workers: engine {engine} runs on one worker; set it to 1")
    if spec.serving.adapters:
        raise SpecError(f"serving.adapters: {adapters}")
