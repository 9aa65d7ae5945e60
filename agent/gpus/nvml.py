"""Reads the GPUs through NVML. The only file that imports pynvml; a separate program, because a driver call may hang.

It answers each input line with one JSON line: {"driver", "gpus": [{...facts} or {"index", "error"}]}, or
{"fatal": why}. The answer to "sample" also has {"work": {uuid: {"running": [pid], "percent": {pid: percent}}}}.
It exits at the end of its input, and when the agent dies.
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
        import pynvml  # noqa: PLC0415 - a failed import is part of the answer
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
    """The driver and every GPU: its facts, or its error if it cannot be read."""
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
    """The processes of these GPUs; a GPU whose processes cannot be read is left out.

    Args:
        nvml: the library.
        uuids: the GPUs.
        last: by UUID, the driver's time (microseconds) of the newest figures read; updated here.
    """
    work = {}
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = {p.pid for query in _running(nvml) for p in _optional(nvml, query, handle) or ()}
            percent = _percent_by_pid(nvml, handle, uuid, last)
        except nvml.NVMLError:
            continue
        work[uuid] = {"running": sorted(running), "percent": percent}
    return work


def _running(nvml: Any) -> tuple[Callable[[Any], Any], ...]:
    return (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)


def _percent_by_pid(nvml: Any, handle: Any, uuid: str, last: dict[str, int]) -> dict[int, float] | None:
    """The highest utilization since the last call, by pid; None if the driver does not report it for this GPU.

    The driver keeps figures for seconds. Those of the first call may be older than the reading, so they are ignored.
    """
    first = uuid not in last
    try:
        figures = nvml.nvmlDeviceGetProcessUtilization(handle, last.get(uuid, 0))
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None
    except nvml.NVMLError_NotFound:
        figures = ()  # no process has worked since
    last[uuid] = max((figure.timeStamp for figure in figures), default=last.get(uuid, 0))
    percent: dict[int, float] = {}
    for figure in () if first else figures:
        percent[figure.pid] = max(percent.get(figure.pid, 0.0), min(float(figure.smUtil), 100.0))
    return percent


def _optional(nvml: Any, query: Callable[[Any], Any], handle: Any) -> Any:
    """A value that this GPU or driver may not support: None is unknown. Any other error is raised."""
    try:
        return query(handle)
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
        sys.exit(1)  # the agent died before the signal was set


if __name__ == "__main__":
    main()
