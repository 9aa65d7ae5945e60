"""Reads the GPUs through NVML. The only file that knows pynvml; a program of its own, since a driver call may hang.

One JSON line out for every line in: {"driver", "gpus": [{...facts} or {"index", "error"}]}, or {"fatal": why}. Ends
with its input, and dies with the agent.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_MIB = 2**20


def main() -> None:
    """Answers until the input ends."""
    _die_with_parent()
    try:
        import pynvml  # noqa: PLC0415 - whether it can be imported is part of the answer
    except ImportError:
        _answer({"fatal": "the package nvidia-ml-py is not installed"})
        return
    ready = False
    for _ in sys.stdin:
        try:
            if not ready:
                pynvml.nvmlInit()
                ready = True
            _answer(read_all(pynvml))
        except pynvml.NVMLError as error:
            _answer({"fatal": str(error)})


def read_all(nvml: Any) -> dict[str, Any]:
    """Driver and every GPU. One that errors is in the list with its error, the others with their facts."""
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_read_gpu(nvml, index))
        except nvml.NVMLError as error:
            gpus.append({"index": index, "error": str(error)})
    return {"driver": _text(nvml.nvmlSystemGetDriverVersion()), "gpus": gpus}


def _read_gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = _optional(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _optional(nvml, nvml.nvmlDeviceGetMigMode, handle)
    utilization = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    remapped = _optional(nvml, nvml.nvmlDeviceGetRemappedRows, handle)  # (correctable, not, pending, failed)
    broken = remapped is not None and bool(remapped[3])
    return {
        "index": index,
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "model": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_mib": memory.total // _MIB,
        "used_mib": memory.used // _MIB,
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "mig_mode": mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        "utilization": None if utilization is None else float(utilization.gpu),
        "health": "unhealthy" if broken else "ok",
        "health_reason": "remapping of a broken memory row failed" if broken else "",
    }


def _optional(nvml: Any, ask: Callable[[Any], Any], handle: Any) -> Any:
    """What this GPU or driver may not have: None is unknown. Any other error is the GPU's, and passes."""
    try:
        return ask(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the signal was asked for


if __name__ == "__main__":
    main()
