"""The user's own command: argv, never a shell. Its need is unknown unless the user states it."""

import re
from collections.abc import Mapping
from typing import Any

from controller.domain.placement import Need
from controller.engines.base import (
    NO_METRICS,
    Analysis,
    Engine,
    EngineProcess,
    Launch,
    SpecError,
    model_reference,
    probe_order,
    refuse_splits,
)
from controller.engines.servers.table import ANY_METRICS
from schemas.manifest.deployment import DeploymentSpec


class CustomEngine(Engine):
    """Runs `command` on any platform. Without a GPU, unless the spec asks for GPUs or GPU memory."""

    name = "custom"

    def validate(self, spec: DeploymentSpec) -> None:
        refuse_splits(spec, self.name, "engine custom passes no flags; use engine vllm or sglang, or remove them")
        if spec.args:
            raise SpecError("args: engine custom passes no args; write them into command")
        if spec.probe is not None and not _needs_port(spec):
            raise SpecError("probe: needs a port, and the command has no {port}; use {port} in it, or remove the probe")
        if spec.serving.apps is not None and not _needs_port(spec):
            raise SpecError("serving.apps: needs a port, and the command has no {port}; use {port} in it")

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """One GPU if the spec refers to GPUs in any field; else none."""
        return (1,) if spec.resources.asks_for_a_gpu or spec.placement.gpus else (0,)

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:  # noqa: ARG002 - the same for every spec
        return None

    def need(self, spec: DeploymentSpec, result: Any) -> Need:  # noqa: ARG002 - the same for every spec
        """Unknown, so GPUs are claimed exclusively unless the spec states their memory."""
        return Need(memory_mib=None, notes=("the need of a command is unknown",))

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """The command with {host}, {model} and {gpu_count} filled in. The agent chooses {port}."""
        model = model_reference(spec) or ""
        count = str(launch.gpu_count)
        filled = {"{gpu_count}": count, "{host}": launch.host, "{model}": model}
        argv = tuple(_with(part, filled) for part in spec.command)
        serves = _needs_port(spec)
        return EngineProcess(
            argv=argv,
            needs_port=serves,
            probe=probe_order(spec, None),
            metrics=ANY_METRICS if serves else NO_METRICS,  # a server without metrics has only the proxy's count
        )


def _with(part: str, filled: Mapping[str, str]) -> str:
    """The part with its placeholders filled in, in one pass, so that no value is read as a placeholder."""
    return re.sub("|".join(map(re.escape, filled)), lambda match: filled[match[0]], part)


def _needs_port(spec: DeploymentSpec) -> bool:
    return any("{port}" in part for part in spec.command)
