"""The engine `simulated` with the rig's args: faults, and the figures of the model that it represents."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from controller.domain.placement import Need
from controller.engines import registry, simulated
from controller.engines.base import SERVES_AT_ONCE, EngineProcess, Launch
from controller.engines.servers.model_server import GPU_COUNTS
from schemas.manifest import deployment
from schemas.manifest.deployment import DeploymentSpec
from schemas.units import parse_duration_s

Read = Callable[[object], Any]
_FIGURES: Final = ("heads", "kv_heads", "vocab", "vision_heads")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - refusals of args are ValueErrors throughout
    return value


# Those that are flags of the rig's program, too.
FLAGS: Final[dict[str, Read]] = {
    "token_seconds": parse_duration_s,
    "wait_seconds": parse_duration_s,
    "die_after_tokens": int,
    "refuse": int,
    "slots": int,
    "kv_tokens": int,
    "hang_after": int,
    "silent": _flag,
    "usage": _flag,
    "without": lambda value: tuple(value) if isinstance(value, list) else (str(value),),
    "served_model_name": str,
}
ARGS: Final[dict[str, Read]] = {**FLAGS, **dict.fromkeys(_FIGURES, int)}


class RigEngine(simulated.SimulatedEngine):
    """Takes the args of the product's engine, and `ARGS`."""

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        return GPU_COUNTS if "heads" in spec.args else super().gpu_counts(spec)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        args = simulated.parse_args(spec)
        return replace(super().need(spec, result), **{name: args.get(name) for name in _FIGURES})

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        args, process = simulated.parse_args(spec), super().process(spec, launch)
        return replace(
            process,
            argv=(*process.argv, *_flags(args)),
            request_model=args.get("served_model_name"),
            serves_at_once=args.get("slots") or SERVES_AT_ONCE,
        )


@contextmanager
def known_here() -> Iterator[None]:
    """Controllers in this process know the rig's args."""
    with (
        mock.patch.dict(simulated.ARGS, ARGS),
        mock.patch.object(simulated, "RETIRED_ARGS", frozenset()),
        mock.patch.object(deployment, "RETIRED_ARGS", frozenset()),
        mock.patch.dict(registry._ENGINES, {RigEngine.name: RigEngine()}),
    ):
        yield


def _flags(args: dict[str, Any]) -> list[str]:
    flags = []
    for name in FLAGS.keys() & args.keys() - {"usage", "without"}:
        flag, value = f"--{name.replace('_', '-')}", args[name]
        if isinstance(value, bool):
            flags += [flag] if value else []
        else:
            flags += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    if not args.get("usage", True):
        flags.append("--no-usage")
    return flags + [part for path in args.get("without", ()) for part in ("--without", path)]
