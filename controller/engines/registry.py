"""Selects the engine of a spec, and checks a spec at apply time."""

from typing import Final

from controller.domain.splits import count_problem
from controller.engines.arguments.environment import reserved
from controller.engines.auto import AutoEngine
from controller.engines.base import Engine, SpecError
from controller.engines.containers import check_container
from controller.engines.custom import CustomEngine
from controller.engines.estimates.model_analysis import reference_problem
from controller.engines.servers.llama_cpp import LlamaCppEngine
from controller.engines.servers.sglang import SglangEngine
from controller.engines.servers.transformers import TransformersEngine
from controller.engines.servers.vllm import VllmEngine
from controller.engines.simulated import SimulatedEngine
from schemas.manifest.deployment import DeploymentSpec

_BEST_FIRST: Final = (LlamaCppEngine(), VllmEngine(), SglangEngine(), TransformersEngine())
_ALL: Final[tuple[Engine, ...]] = (CustomEngine(), SimulatedEngine(), *_BEST_FIRST)
_ENGINES: Final = {engine.name: engine for engine in _ALL}
_AUTO: Final = AutoEngine(_BEST_FIRST)


def engine_for(spec: DeploymentSpec) -> Engine:
    """The engine of a spec. `auto` is `custom` if there is a command, else a choice of those that load the model."""
    if spec.engine == "auto":
        return _ENGINES["custom"] if spec.command else _AUTO
    return _ENGINES[spec.engine]


def validate(spec: DeploymentSpec) -> None:
    """Checks what the schema cannot know: whether this version can run the spec.

    Raises:
        SpecError: names the field and what to do.
    """
    engine = engine_for(spec)
    _check_model(spec)
    if (problem := count_problem(spec)) is not None:
        raise SpecError(problem)
    _check_env(spec)
    if spec.runtime == "docker":
        check_container(spec)
    if spec.serving.apps is not None and engine.name != CustomEngine.name:
        raise SpecError("serving.apps: is for engine custom alone; remove it, or run the server by a command")
    engine.validate(spec)


def _check_model(spec: DeploymentSpec) -> None:
    if spec.model is None:
        return
    if "{" in spec.model or "}" in spec.model:
        raise SpecError("model: braces are reserved for what the agent fills in; rename the folder")
    scheme, _, reference = spec.model.partition(":")
    if problem := reference_problem(reference, on_hub=scheme == "hf"):
        raise SpecError(f"model: {problem}")


def _check_env(spec: DeploymentSpec) -> None:
    for name in spec.env:
        if why := reserved(name):
            raise SpecError(f"env.{name}: {why}")
