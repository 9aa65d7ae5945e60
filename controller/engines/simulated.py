"""The simulated engine: a small real HTTP server whose args set its behaviour."""

import difflib
from collections.abc import Callable
from typing import Any, Final

from controller.domain.placement import Need, Share
from controller.domain.splits import splits_to_measure
from controller.engines.base import (
    SERVES_AT_ONCE,
    Analysis,
    Engine,
    EngineProcess,
    Launch,
    ServerMetrics,
    SpecError,
    adapter_places,
    model_reference,
    probe_order,
)
from controller.engines.servers.model_server import GPU_COUNTS
from schemas.manifest.deployment import DeploymentSpec
from schemas.units import parse_duration_s, parse_size_mib
from schemas.wire import SimulatedLoad

_ANALYSIS: Final = "controller.model_files.analysis:simulated_need"
_HASHED_AS: Final = "gpuward.controller.models.analysis:simulated_need"
_ANALYSIS_MARGIN_S: Final = 30.0  # for the start of the child on a busy machine
_ANALYSIS_MEMORY_BYTES: Final = 512 * 2**20
_MAX_SECONDS: Final = 3600.0
_MAX_EXIT_CODE: Final = 255
_MAX_PERCENT: Final = 100.0
_MAX_STEPS: Final = 1000
_GPU_COUNTS: Final = (1, 2, 4, 8)  # these commonly divide a model's heads
_MAX_FIGURE: Final = 10_000_000
_ERRORS: Final = (400, 599)  # statuses
_NUMBERS: Final = (
    "load_seconds", "exit_after", "exit_code", "token_seconds", "wait_seconds", "die_after_tokens", "refuse", "slots",
    "kv_tokens", "hang_after",
)  # fmt: skip
Steps = tuple[tuple[float, float], ...]


def _seconds(value: object) -> float:
    seconds = parse_duration_s(value)
    if seconds > _MAX_SECONDS:
        raise ValueError(f"must be at most {_MAX_SECONDS:g} seconds")
    return seconds


def _exit_code(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_EXIT_CODE:
        raise ValueError(f"must be a whole number from 0 to {_MAX_EXIT_CODE}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - refusals of args are ValueErrors throughout
    return value


def _percent(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_PERCENT:
        raise ValueError("must be a percentage from 0 to 100, or a list of [seconds, percent]")
    return float(value)


def _utilization(value: object) -> Steps:
    if not isinstance(value, list):
        return ((0.0, _percent(value)),)
    if not 1 <= len(value) <= _MAX_STEPS:
        raise ValueError(f"must have 1 to {_MAX_STEPS} steps of [seconds, percent]")
    steps = []
    for step in value:
        if not isinstance(step, list) or len(step) != 2:  # noqa: PLR2004 - seconds and percent
            raise ValueError("must be a percentage from 0 to 100, or a list of [seconds, percent]")
        steps.append((_seconds(step[0]), _percent(step[1])))
    return tuple(steps)


def _figure(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_FIGURE:
        raise ValueError(f"must be a whole number from 1 to {_MAX_FIGURE}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_FIGURE:
        raise ValueError(f"must be a whole number from 0 to {_MAX_FIGURE}")
    return value


def _status(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not _ERRORS[0] <= value <= _ERRORS[1]:
        raise ValueError(f"must be a status from {_ERRORS[0]} to {_ERRORS[1]}")
    return value


def _paths(value: object) -> tuple[str, ...]:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and path.startswith("/") for path in paths):
        raise ValueError("must be a path that begins with /, or a list of such paths")
    return tuple(paths)


def _model_name(value: object) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise ValueError("must be a name that does not begin with -")
    return value


_ARGS: Final[dict[str, Callable[[object], Any]]] = {
    "analysis_seconds": _seconds,
    "load_seconds": _seconds,
    "exit_after": _seconds,
    "exit_code": _exit_code,
    "ignore_sigterm": _flag,
    "utilization": _utilization,
    "memory": parse_size_mib,
    "token_seconds": _seconds,
    "wait_seconds": _seconds,
    "die_after_tokens": _count,
    "refuse": _status,
    "silent": _flag,
    "usage": _flag,
    "slots": _figure,
    "kv_tokens": _figure,
    "hang_after": _count,
    "without": _paths,
    "served_model_name": _model_name,
    # The figures of the model that it stands for, as an analysis would give them.
    "heads": _figure,
    "kv_heads": _figure,
    "vocab": _figure,
    "vision_heads": _figure,
    "need_per_gpu": parse_size_mib,
}


def parse_args(spec: DeploymentSpec) -> dict[str, Any]:
    """The args by name, checked and converted: seconds, percent steps, MiB.

    Raises:
        SpecError: names the arg and what it must be.
    """
    parsed = {}
    for name, value in spec.args.items():
        if name not in _ARGS:
            near = difflib.get_close_matches(name, _ARGS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_ARGS)}"
            raise SpecError(f"args.{name}: unknown arg of the simulated engine; {hint}")
        try:
            parsed[name] = _ARGS[name](value)
        except ValueError as error:
            raise SpecError(f"args.{name}: {error}") from None
    return parsed


class SimulatedEngine(Engine):
    """Runs anywhere, also as a gang, in which rank 0 serves.

    Its need is the arg `memory` over all GPUs, or `need_per_gpu` for each GPU. Without them its need is unknown.
    """

    name = "simulated"

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError for unknown or invalid args."""
        if "need_per_gpu" in (args := parse_args(spec)) and "memory" in args:
            raise SpecError("args.need_per_gpu: conflicts with args.memory; remove one of them")

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """The counts that its heads may allow, or the common ones."""
        return GPU_COUNTS if "heads" in parse_args(spec) else _GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Sleeps in the child for `analysis_seconds`, if set."""
        args = parse_args(spec)
        seconds = args.get("analysis_seconds")
        if seconds is None:
            return None
        payload = {"seconds": seconds, "memory_mib": args.get("memory")}
        return Analysis(_ANALYSIS, payload, seconds + _ANALYSIS_MARGIN_S, _ANALYSIS_MEMORY_BYTES, _HASHED_AS)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The need in the args."""
        args = parse_args(spec)
        memory_mib = args.get("memory") if result is None else result["memory_mib"]
        per_gpu_mib = args.get("need_per_gpu")
        shares: dict[tuple[int, int, int], Share] = {}
        if per_gpu_mib is not None:
            for split in splits_to_measure(spec, self.gpu_counts(spec)):
                shares[split.degrees] = Share(*split.degrees, per_gpu_mib, {"simulated": per_gpu_mib})
        return Need(
            memory_mib=memory_mib,
            parts={} if memory_mib is None else {"simulated": memory_mib},
            heads=args.get("heads"),
            kv_heads=args.get("kv_heads"),
            vocab=args.get("vocab"),
            vision_heads=args.get("vision_heads"),
            shares=tuple(shares.values()),
        )

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """The simulated engine, which is part of every agent."""
        args = parse_args(spec)
        argv = ["{simulated_engine}", "--port", "{port}"]
        argv += ["--model", model_reference(spec) or "simulated"]
        argv += _flags(args)
        if adapters := adapter_places(spec):
            argv += ["--lora-modules", *(f"{name}={place}" for name, place in adapters.items())]
        memory, per_gpu = args.get("memory"), args.get("need_per_gpu")
        if memory is not None and launch.gpu_count:
            per_gpu = -(-memory // (launch.gpu_count * launch.workers))
        load = SimulatedLoad(
            utilization=args.get("utilization", ((0.0, 0.0),)),
            memory_mib=per_gpu if launch.gpu_count else None,
        )
        return EngineProcess(
            argv=tuple(argv),
            needs_port=True,
            probe=probe_order(spec, "/health"),
            simulated_load=load,
            request_model=args.get("served_model_name"),
            metrics=ServerMetrics(
                request_gauges=("simulated_requests_running", "simulated_requests_waiting"),
                queue_gauges=("simulated_requests_waiting",),
                cache_gauges=("vllm:kv_cache_usage_perc",),
                progress_counters=("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
            ),
            serves_at_once=args.get("slots") or SERVES_AT_ONCE,
            adapters={name: name for name in spec.serving.adapters},
        )


def _flags(args: dict[str, Any]) -> list[str]:
    """The engine's command line of these args, in a fixed order."""
    flags = []
    for name in _NUMBERS:
        if name in args:
            value = args[name]
            flags += [f"--{name.replace('_', '-')}", str(value) if isinstance(value, int) else f"{value:g}"]
    for name, flag in (("ignore_sigterm", "--ignore-sigterm"), ("silent", "--silent")):
        if args.get(name):
            flags.append(flag)
    if not args.get("usage", True):
        flags.append("--no-usage")
    for path in args.get("without", ()):
        flags += ["--without", path]
    if "served_model_name" in args:
        flags += ["--served-model-name", args["served_model_name"]]
    return flags
