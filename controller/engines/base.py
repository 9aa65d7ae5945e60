"""What an engine is to the controller: where it runs, what it needs, how it is started and asked for its health."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from controller.domain.placement import Compatibility, Need
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import ProbeOrder, SimulatedLoad


class SpecError(ValueError):
    """A spec that cannot work. The message begins with the field and says what to do."""


class EngineUnsupportedError(SpecError):
    """Asks for an engine or a way of running that this version does not have (reason `engine_unsupported`)."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Work for the killable child; the need follows from what it returns."""

    target: str  # "module:function"
    payload: Mapping[str, Any]  # JSON
    deadline_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Where one process of an instance was placed. Sizes in MiB.

    Attributes:
        gpu_count: GPUs of this process.
        memory_mib: claimed of each of them.
        gpu_mib: memory of the largest of them, so that a share of it is never more than the claim; 0: not known.
        others_mib: most that others have claimed of one of them.
        exclusive: they are the process's alone.
        need_mib: of each of them as reckoned or given, which of one that is claimed whole is less than the claim.
        tp, pp, dp: degrees over all processes.
        workers: processes, one on each worker; this one is number `rank`, the leader 0.
        leader: host name or address at which the others reach the leader; empty where there are none.
        rendezvous_port: on the leader's host, where the processes of a gang find each other.
        context, sequences: what the need was reckoned for; None: it was not reckoned.
    """

    gpu_count: int = 0
    memory_mib: int = 0
    gpu_mib: int = 0
    others_mib: int = 0
    exclusive: bool = False
    need_mib: int = 0
    tp: int = 1
    pp: int = 1
    dp: int = 1
    workers: int = 1
    rank: int = 0
    leader: str = ""
    rendezvous_port: int = 0
    context: int | None = None
    sequences: int | None = None


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """How one process of an instance is started. argv leaves {port} and {simulated_engine} to the agent."""

    argv: tuple[str, ...]
    needs_port: bool
    env: Mapping[str, str] = field(default_factory=dict)  # the spec's own env goes over it
    probe: ProbeOrder | None = None
    simulated_load: SimulatedLoad | None = None
    # What the server wants to read as `model` in a request; None: it takes any name, so the deployment's.
    request_model: str | None = None
    # On the server's /metrics: requests in flight or waiting are their sum. A server that has none of them tells none.
    request_gauges: tuple[str, ...] = ()
    gpus_by_index: bool = False  # it understands no GPU by its UUID, so it is told their numbers on the host


class Engine(Protocol):
    """One engine. All of it pure and quick; `validate` has passed before anything else is called."""

    name: str

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError where the engine cannot run this spec."""

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """What the engine runs on."""

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """GPUs of one worker to try, best first, where the user leaves the count to us; (0,): it wants none."""

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """What the child has to work out; None: the need is known at once."""

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The need, from what the analysis returned (None where there was none)."""

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """How to start the process that was placed so."""

    def chosen(self, name: str) -> "Engine":
        """The engine of that name among those that it stands for; empty: the one that it is without a choice."""


class SingleEngine:
    """An engine that stands for none but itself.

    `own_flags` are those by which a user who leaves the engine to us shows which one he means.
    """

    own_flags: frozenset[str] = frozenset()

    def chosen(self, name: str) -> Self:  # noqa: ARG002 - there is no choice
        """Itself."""
        return self


def probe_order(spec: DeploymentSpec, default_path: str | None) -> ProbeOrder | None:
    """The user's probe, else the engine's own, else none."""
    if spec.probe is not None:
        probe = spec.probe
        return ProbeOrder(path=probe.path, period_s=probe.period, timeout_s=probe.timeout, failures=probe.failures)
    if default_path is None:
        return None
    return ProbeOrder(path=default_path, period_s=5.0, timeout_s=3.0, failures=3)


def model_reference(spec: DeploymentSpec) -> str | None:
    """The model without its scheme: /dir of path:/dir, org/name@rev of hf:org/name@rev."""
    return None if spec.model is None else spec.model.partition(":")[2]


def refuse_gangs(spec: DeploymentSpec, engine: str) -> None:
    """Raises SpecError where several workers are allowed to an engine that cannot use them."""
    if spec.resources.max_workers > 1:
        raise SpecError(f"resources.max_workers: engine {engine} runs on one worker at a time; leave it at 1")


def refuse_parallel(spec: DeploymentSpec, engine: str) -> None:
    """Raises SpecError where degrees are stated that the engine would silently ignore."""
    if spec.parallel.world is not None:
        raise SpecError(
            f"parallel: engine {engine} cannot split a model by these degrees; remove them, or set resources.gpus"
        )
