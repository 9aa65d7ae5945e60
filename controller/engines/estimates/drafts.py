"""Models that draft tokens for another model: their files, by the flags of each server, and their memory."""

import json
from collections.abc import Mapping
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.domain.splits import Split
from controller.engines.arguments.flags import flag_of, stated, text
from controller.engines.base import SpecError
from controller.engines.estimates.memory import (
    UNKNOWN_CACHE_SHARE,
    Workload,
    cache_per_gpu,
    loaded_bytes,
    weights_per_gpu,
)
from controller.engines.estimates.model_analysis import reference_problem
from schemas.manifest.deployment import DeploymentSpec

# Methods of vLLM without a draft model.
WITHOUT_DRAFT: Final = frozenset({"ngram", "suffix"})
_LLAMA_CPP: Final = ("spec-draft-model", "model-draft")
_SGLANG: Final = ("speculative-draft-model-path", "speculative-draft-model")
SGLANG_REVISION: Final = ("speculative-draft-model-revision",)
VLLM_SPECULATION: Final = ("speculative-config",)


def llama_cpp_draft(spec: DeploymentSpec) -> str | None:
    """The draft model as `gguf:/file`; None if there is none, or it cannot be read."""
    value = text(spec, *_LLAMA_CPP)
    return f"gguf:{value}" if value is not None and value.startswith("/") and _readable(value) else None


def vllm_draft(spec: DeploymentSpec) -> str | None:
    """The draft model as `path:/folder` or `hf:org/name@revision`; None if there is none, or it cannot be read."""
    config = vllm_speculation(spec)
    model = config.get("model")
    if not isinstance(model, str) or config.get("method") in WITHOUT_DRAFT:
        return None
    revision = config.get("revision")
    return _place(model, revision if isinstance(revision, str) else None)


def sglang_draft(spec: DeploymentSpec) -> str | None:
    """Like `vllm_draft`."""
    model = text(spec, *_SGLANG)
    return None if model is None else _place(model, text(spec, *SGLANG_REVISION))


def vllm_speculation(spec: DeploymentSpec) -> Mapping[str, Any]:
    """The content of `speculative-config`; empty if it is not a JSON object."""
    value = stated(spec, VLLM_SPECULATION)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def check_draft(place: str | None, spec: DeploymentSpec, names: tuple[str, ...]) -> None:
    """Raises SpecError for an invalid name of a draft model."""
    if place is None:
        return
    scheme, _, reference = place.partition(":")
    if problem := reference_problem(reference, on_hub=scheme == "hf"):
        given = next((name for name in spec.args if flag_of(name.partition(".")[0]) in names), names[0])
        raise SpecError(f"args.{given}: {problem}")


def draft_bytes(draft: ModelFacts, split: Split, workload: Workload, dtype_bytes: int | None) -> float:
    """Weights and cache of a draft model on each GPU, for the sequences of the model that it drafts for.

    Each pipeline stage is assumed to hold all of it. `dtype_bytes`: of the working type; None: as stored.
    """
    own = Split(split.tp, 1, 1)
    cache = cache_per_gpu(draft, own, workload)
    weights = weights_per_gpu(draft, own, loaded_bytes(draft, dtype_bytes))
    return weights + (draft.weight_bytes * UNKNOWN_CACHE_SHARE if cache is None else cache)


def _place(model: str, revision: str | None) -> str | None:
    if model.startswith("/"):
        return f"path:{model}"
    # A name without an owner may be a folder next to the server, or a keyword.
    return f"hf:{model}" + (f"@{revision}" if revision else "") if model.count("/") == 1 and _readable(model) else None


def _readable(name: str) -> bool:
    return bool(name.strip("/")) and "@" not in name
