"""Readings of GPUs that the agent's child does not take, as a JSON line, to examine a new kind of host. Reads only."""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml


def main() -> None:
    pynvml.nvmlInit()
    found: dict[str, dict[str, Any]] = {"versions": {"nvml": _tried(lambda: _text(pynvml.nvmlSystemGetNVMLVersion()))}}
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        tried = {name: _tried(partial(read, gpu)) for name, read in _SUBJECTS.items()}
        found[f"GPU {index} beyond"] = tried
    sys.stdout.write(json.dumps(found, default=str) + "\n")


def _fabric(gpu: Any) -> dict[str, Any]:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(gpu, info)
    return {"state": info.state, "status": info.status, "clique": info.cliqueId, "health_mask": info.healthMask}


def _memory(gpu: Any) -> dict[str, int]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    return {name: getattr(memory, name) // 2**20 for name in ("total", "reserved", "free", "used")}


_SUBJECTS: dict[str, Callable[[Any], Any]] = {
    "fabric": _fabric,
    "ecc_mode": lambda gpu: list(pynvml.nvmlDeviceGetEccMode(gpu)),
    "mig_mode": lambda gpu: list(pynvml.nvmlDeviceGetMigMode(gpu)),
    "bar1_mib": lambda gpu: pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total // 2**20,
    "memory_v2": _memory,
    "accounting": lambda gpu: int(pynvml.nvmlDeviceGetAccountingMode(gpu)),
    "virtualization": lambda gpu: int(pynvml.nvmlDeviceGetVirtualizationMode(gpu)),
    "serial_known": lambda gpu: bool(pynvml.nvmlDeviceGetSerial(gpu)),
    "cores": lambda gpu: int(pynvml.nvmlDeviceGetNumGpuCores(gpu)),
    "retired_pages": lambda gpu: len(pynvml.nvmlDeviceGetRetiredPages(gpu, 0)),
}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (pynvml.NVMLError, AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
