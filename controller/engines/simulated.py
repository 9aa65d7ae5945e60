"""The simulated engine: a small real HTTP server with canned answers."""

import difflib
from collections.abc import Callable
from typing import Any, Final

from controller.domain.placement import Need, Share
from controller.domain.splits import splits_to_measure
from controller.engines.base import (
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
from schemas.manifest.deployment import RETIRED_ARGS, DeploymentSpec
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
_NUMBERS: Final = ("load_seconds", "exit_after", "exit_code")
_SERVED_AS: Final = "served_model_name"  # retired, but an engine of an earlier version may serve under this name
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


ARGS: Final[dict[str, Callable[[object], Any]]] = {
    "analysis_seconds": _seconds,
    "load_seconds": _seconds,
    "exit_after": _seconds,
    "exit_code": _exit_code,
    "ignore_sigterm": _flag,
    "utilization": _utilization,
    "memory": parse_size_mib,
    "need_per_gpu": parse_size_mib,
}


def parse_args(spec: DeploymentSpec) -> dict[str, Any]:
    """The args by name, checked and converted to seconds, percent steps and MiB, without retired args.

    Raises:
        SpecError: names the arg and the fix.
    """
    parsed = {}
    for name, value in spec.args.items():
        if name in RETIRED_ARGS:
            continue
        if name not in ARGS:
            near = difflib.get_close_matches(name, ARGS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ARGS)}"
            raise SpecError(f"args.{name}: unknown arg of the simulated engine; {hint}")
        try:
            parsed[name] = ARGS[name](value)
        except ValueError as error:
            raise SpecError(f"args.{name}: {error}") from None
    return parsed


class SimulatedEngine(Engine):
    """Runs on any host, also as a gang, in which rank 0 serves.

    Its need is the arg `memory` over all GPUs, or `need_per_gpu` for each GPU; else unknown.
    """

    name = "simulated"

    def validate(self, spec: DeploymentSpec) -> None:
        if "need_per_gpu" in (args := parse_args(spec)) and "memory" in args:
            raise SpecError("args.need_per_gpu: conflicts with args.memory; remove one of them")

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:  # noqa: ARG002 - the same for every spec
        return _GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Sleeps in the child for `analysis_seconds`, if set."""
        args = parse_args(spec)
        seconds = args.get("analysis_seconds")
        if seconds is None:
            return None
        payload = {"seconds": seconds, "memory_mib": args.get("memory")}
        return Analysis(_ANALYSIS, payload, seconds + _ANALYSIS_MARGIN_S, _ANALYSIS_MEMORY_BYTES, _HASHED_AS)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
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
            shares=tuple(shares.values()),
        )

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        args = parse_args(spec)
        argv = ["{simulated_engine}", "--port", "{port}", "--model", model_reference(spec) or "simulated"]
        for flag in _NUMBERS:
            if flag in args:
                argv += [f"--{flag.replace('_', '-')}", f"{args[flag]:g}"]
        if args.get("ignore_sigterm"):
            argv.append("--ignore-sigterm")
        if adapters := adapter_places(spec):
            argv += ["--lora-modules", *(f"{name}={place}" for name, place in adapters.items())]
        memory, per_gpu = args.get("memory"), args.get("need_per_gpu")
        if memory is not None and launch.gpu_count:
            per_gpu = -(-memory // (launch.gpu_count * launch.workers))
        served_as = spec.args.get(_SERVED_AS)
        load = SimulatedLoad(
            utilization=args.get("utilization", ((0.0, 0.0),)),
            memory_mib=per_gpu if launch.gpu_count else None,
        )
        return EngineProcess(
            argv=tuple(argv),
            needs_port=True,
            probe=probe_order(spec, "/health"),
            simulated_load=load,
            # An engine of an earlier version accepts only this name; ours accept any.
            request_model=served_as if isinstance(served_as, str) else None,
            metrics=ServerMetrics(
                request_gauges=("simulated_requests_running", "simulated_requests_waiting"),
                queue_gauges=("simulated_requests_waiting",),
                cache_gauges=("vllm:kv_cache_usage_perc",),
                progress_counters=("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
            ),
            adapters={name: name for name in spec.serving.adapters},
        )
