"""The compute capability that a model's types need, in addition to the engine's requirement."""

from collections.abc import Iterator, Mapping

from controller.domain.model_facts import ModelFacts
from controller.engines.arguments.flags import text
from controller.engines.estimates.stated_memory import stated_memory
from schemas.manifest.deployment import DeploymentSpec


def demanded_capability(
    spec: DeploymentSpec, facts: ModelFacts, capabilities: Mapping[str, tuple[int, int]]
) -> tuple[int, int] | None:
    """The minimum for the types in use; None if they have no requirement."""
    return max((capabilities[name] for name in _demands(spec, facts) if name in capabilities), default=None)


def _demands(spec: DeploymentSpec, facts: ModelFacts) -> Iterator[str]:
    """The types in use: quantization methods, `fp8-weights` (or by method), `nvfp4`, `fp8-cache`, `bfloat16`."""
    dtype = text(spec, "dtype")
    if (dtype if dtype not in (None, "auto") else facts.dtype) == "bfloat16":
        yield "bfloat16"
    if stated_memory(spec) is not None:
        return  # kernels' requirements are estimates too, and stated memory overrides estimates
    method = text(spec, "quantization") or (facts.quantization.method if facts.quantization else None)
    if method is not None:
        yield method
    # If the method leaves the type open (compressed-tensors, modelopt), the tensors show it.
    if method == "fp8" or any(name.startswith("F8_E") for name in facts.dtypes):
        yield _of_fp8(facts, method or "")
    if (text(spec, "kv-cache-dtype") or "").startswith("fp8"):
        yield "fp8-cache"


def _of_fp8(facts: ModelFacts, method: str) -> str:
    """The use of tensors of 8 bits: as weights, or as the scales of weights of 4 bits (NVFP4)."""
    bits = facts.quantization.bits if facts.quantization else None
    if method == "modelopt_fp4" or (bits == 4 and method.startswith(("modelopt", "compressed-tensors", "nvfp4"))):  # noqa: PLR2004 - bits
        return "nvfp4"
    return {"modelopt": "modelopt-fp8", "quark": "quark-fp8"}.get(method, "fp8-weights")
