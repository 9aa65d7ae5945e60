"""What the killable child is told to run: plain functions from a JSON value to a JSON value.

They import nothing slow at the top: a child starts for every model that is read.
"""

import time
from pathlib import Path
from typing import Any, Final

from gpuward.controller.models.config import ModelConfig, folder_config
from gpuward.controller.models.safetensors import TensorTotals, folder_totals

MAX_SIMULATED_S: Final = 3600.0


def safetensors_need(payload: dict[str, Any]) -> dict[str, Any]:
    """Reads what a model's tensors come to.

    Args:
        payload: `{"path": folder}`, or `{"repo": name, "revision": revision}` with an optional `"endpoint": URL`.

    Returns:
        `tensor_bytes`, `elements` by dtype, `files`, and from the config `heads`, `kv_heads`, `vocab` (None: unknown).

    Raises:
        MetadataError: see there.
    """
    if "path" in payload:
        folder = Path(payload["path"])
        return _result(folder_totals(folder), folder_config(folder))
    from gpuward.controller.models.huggingface import hub_totals  # noqa: PLC0415 - brings TLS with it

    return _result(*hub_totals(payload["repo"], payload["revision"], payload.get("endpoint")))


def _result(totals: TensorTotals, config: ModelConfig) -> dict[str, Any]:
    return {
        "tensor_bytes": totals.size_bytes,
        "elements": dict(totals.elements),
        "files": totals.files,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "vocab": config.vocab,
    }


def simulated_need(payload: dict[str, Any]) -> dict[str, Any]:
    """Takes `seconds`, then returns the `memory_mib` that it was given (None: unknown)."""
    time.sleep(min(float(payload["seconds"]), MAX_SIMULATED_S))
    return {"memory_mib": payload["memory_mib"]}
