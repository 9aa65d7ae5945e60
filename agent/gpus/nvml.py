"""Reads the GPUs through NVML. The only file that knows pynvml; a program of its own, since a driver call may hang.

One JSON line out for every line in: {"driver", "gpus": [{...facts} or {"index", "error"}]}, or {"fatal": why}. To the
line "sample" also {"work": {uuid: {"running": [pid], "percent": {pid: percent}}}}. Ends with its input, and dies with
the agent.
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
    last: dict[str, int] = {}
    for question in sys.stdin:
        try:
            if not ready:
                pynvml.nvmlInit()
                ready = True
            answer = read_all(pynvml)
            if question.strip() == "sample":
                answer["work"] = read_work(pynvml, [gpu["uuid"] for gpu in answer["gpus"] if "uuid" in gpu], last)
            _answer(answer)
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


def read_work(nvml: Any, uuids: list[str], last: dict[str, int]) -> dict[str, Any]:
    """Who works on each of these GPUs; those of which the driver does not tell are missing.

    Args:
        nvml: the library.
        uuids: of the GPUs.
        last: by UUID the driver's time (microseconds) of the newest figures that were taken; kept up to date.
    """
    work = {}
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = {p.pid for ask in _running(nvml) for p in _optional(nvml, ask, handle) or ()}
            percent = _percent_by_pid(nvml, handle, uuid, last)
        except nvml.NVMLError:
            continue
        work[uuid] = {"running": sorted(running), "percent": percent}
    return work


def _running(nvml: Any) -> tuple[Callable[[Any], Any], ...]:
    return (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)


def _percent_by_pid(nvml: Any, handle: Any, uuid: str, last: dict[str, int]) -> dict[int, float] | None:
    """By pid the highest figure since the last time. None: the driver has none to tell on this GPU.

    The driver keeps figures for seconds: those of the first time may be older than the reading and are passed over.
    """
    first = uuid not in last
    try:
        figures = nvml.nvmlDeviceGetProcessUtilization(handle, last.get(uuid, 0))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None
    except nvml.NVMLError_NotFound:
        figures = ()  # nobody has worked since
    last[uuid] = max((figure.timeStamp for figure in figures), default=last.get(uuid, 0))
    percent: dict[int, float] = {}
    for figure in () if first else figures:
        percent[figure.pid] = max(percent.get(figure.pid, 0.0), min(float(figure.smUtil), 100.0))
    return percent


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
