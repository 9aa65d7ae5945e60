"""Which engine runs a spec, and the checks that an apply has to pass."""

from typing import Final

from controller.engines.auto import AutoEngine
from controller.engines.base import Engine, EngineUnsupportedError, SpecError
from controller.engines.custom import CustomEngine
from controller.engines.llama_cpp import LlamaCppEngine
from controller.engines.sglang import SglangEngine
from controller.engines.simulated import SimulatedEngine
from controller.engines.transformers import TransformersEngine
from controller.engines.vllm import VllmEngine
from schemas.manifest.deployment import DeploymentSpec

_BEST_FIRST: Final = (LlamaCppEngine(), VllmEngine(), SglangEngine(), TransformersEngine())
_ALL: Final[tuple[Engine, ...]] = (CustomEngine(), SimulatedEngine(), *_BEST_FIRST)
_ENGINES: Final = {engine.name: engine for engine in _ALL}
_AUTO: Final = AutoEngine(_BEST_FIRST)


def engine_for(spec: DeploymentSpec) -> Engine:
    """The engine of a spec; `auto` is custom where there is a command, else a choice of those that load the model.

    Raises:
        EngineUnsupportedError: naming the field and what to write instead.
    """
    if spec.runtime == "docker":
        raise EngineUnsupportedError("runtime: docker is not available in this version; use runtime: process")
    if spec.engine == "auto":
        return _ENGINES["custom"] if spec.command else _AUTO
    return _ENGINES[spec.engine]


def validate(spec: DeploymentSpec) -> None:
    """Checks at apply time what the schema cannot know: whether this version can run the spec at all.

    Raises:
        SpecError: naming the field and what to do; EngineUnsupportedError where a later version might.
    """
    engine = engine_for(spec)
    if spec.update == "rolling":
        raise EngineUnsupportedError("update: rolling is not available in this version; use update: recreate")
    if spec.model is not None and ("{" in spec.model or "}" in spec.model):
        raise SpecError("model: braces stand for what the agent fills in; rename the folder")
    _check_counts(spec)
    engine.validate(spec)


def _check_counts(spec: DeploymentSpec) -> None:
    resources, named = spec.resources, len(spec.placement.gpus)
    count = spec.parallel.world if resources.gpus == "auto" else resources.gpus
    if named and count is not None and count != named:
        raise SpecError(
            f"placement.gpus: names {named} GPUs, {count} are asked for: count_mismatch; name as many, or leave it out"
        )
    if resources.gpus == 0 and (resources.gpu_memory != "auto" or resources.exclusive):
        raise SpecError("resources.gpus: is 0, but GPU memory or a whole GPU is asked for; remove one of them")
