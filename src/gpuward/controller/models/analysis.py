"""What the killable child is told to run: plain functions from a JSON value to a JSON value.

They import nothing slow at the top: a child starts for every model that is read.
"""

import time
from pathlib import Path
from typing import Any, Final

from gpuward.controller.domain.model_facts import ModelFacts, facts_to_json
from gpuward.controller.models.config import read_config, with_config
from gpuward.controller.models.errors import MetadataError
from gpuward.controller.models.files import LocalFolder, ModelFiles
from gpuward.controller.models.safetensors import BITS
from gpuward.controller.models.weights import read_weights

MAX_SIMULATED_S: Final = 3600.0


def model_facts(payload: dict[str, Any]) -> dict[str, Any]:
    """Reads what a model's files say; no weights are read, let alone downloaded.

    Args:
        payload: `{"path": folder}`, or `{"repo": name, "revision": revision}` with an optional `"endpoint": URL`.

    Returns:
        `ModelFacts` as JSON.

    Raises:
        MetadataError: see there.
    """
    try:
        return facts_to_json(_facts(payload))
    except MemoryError as error:
        raise MetadataError(
            "the model's headers need more memory than its reader may take; give resources.gpu_memory",
            retryable=False,
        ) from error


def safetensors_need(payload: dict[str, Any]) -> dict[str, Any]:
    """As `model_facts`, in fewer words: `tensor_bytes`, `elements` by dtype, `heads`, `kv_heads`, `vocab`."""
    facts = _facts(payload)
    return {
        "tensor_bytes": facts.weight_bytes,
        "elements": {t: n * 8 // BITS[t] for t, n in facts.dtypes.items() if t in BITS},
        "heads": facts.heads,
        "kv_heads": facts.kv_heads,
        "vocab": facts.vocab,
    }


def _facts(source: dict[str, Any]) -> ModelFacts:
    files = _files(source)
    weights = read_weights(files)
    facts = ModelFacts(
        weights.format, weights.size_bytes, dict(weights.dtypes), weights.parameters, revision=files.revision
    )
    return with_config(facts, read_config(files))


def _files(source: dict[str, Any]) -> ModelFiles:
    if "path" in source:
        return LocalFolder(Path(source["path"]))
    from gpuward.controller.models.huggingface import HubFiles  # noqa: PLC0415 - brings TLS with it

    return HubFiles(source["repo"], source["revision"], source.get("endpoint"))


def simulated_need(payload: dict[str, Any]) -> dict[str, Any]:
    """Takes `seconds`, then returns the `memory_mib` that it was given (None: unknown)."""
    time.sleep(min(float(payload["seconds"]), MAX_SIMULATED_S))
    return {"memory_mib": payload["memory_mib"]}
