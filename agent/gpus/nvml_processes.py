"""The processes of GPUs as NVML reports them, in lists that may grow after the question for their size."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from agent.gpus.nvml_fields import MIB, LibraryBrokenError

_SUCCESS: Final = 0  # nvidia-ml-py raises it for an empty list
_UNSUPPORTED: Final = frozenset({3, 4, 13, 25})
_NOT_FOUND: Final = 6
_INSUFFICIENT_SIZE: Final = 7
_TRIES: Final = 4
_FULL_PERCENT: Final = 100.0


class ProcessReader:
    """Remembers, by GPU, the driver's time (microseconds) of the newest figures that it has read."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._last: dict[str, int] = {}

    def read(self, handles: Mapping[str, Any]) -> dict[str, Any]:
        """The processes of these GPUs by UUID; a GPU whose processes cannot be read is left out.

        Raises:
            LibraryBrokenError: only a new process can read again.
        """
        work = {}
        for uuid, handle in handles.items():
            try:
                memory = self._memory_by_pid(handle)
                work[uuid] = {
                    "running": sorted(memory),
                    "memory_mib": {pid: mib for pid, mib in memory.items() if mib is not None},
                    "percent": self._percent_by_pid(handle, uuid),
                }
            except self._nvml.NVMLError as error:
                LibraryBrokenError.check(error)
        return work

    def _memory_by_pid(self, handle: Any) -> dict[int, int | None]:
        """The processes that have the GPU open, with their memory in MiB; None: unknown. nvidia-ml-py makes it None."""
        nvml = self._nvml
        found: dict[int, int | None] = {}
        for query in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                for process in self._whole(functools.partial(query, handle)):
                    used = process.usedGpuMemory
                    known = found.get(process.pid)
                    found[process.pid] = known if used is None else max(used // MIB, known or 0)
            except nvml.NVMLError as error:
                if error.value not in _UNSUPPORTED:
                    raise
        return found

    def _percent_by_pid(self, handle: Any, uuid: str) -> dict[int, float] | None:
        """The highest utilization since the last call, by pid; None if the driver does not report it for this GPU.

        The driver keeps figures for seconds. Those of the first call may be older than the reading, so they are
        ignored.
        """
        first = uuid not in self._last
        since = self._last.get(uuid, 0)
        try:
            figures = self._whole(lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since))
        except self._nvml.NVMLError as error:
            if error.value in _UNSUPPORTED:
                return None
            if error.value != _NOT_FOUND:
                raise
            figures = ()  # no process has worked since
        self._last[uuid] = max((figure.timeStamp for figure in figures), default=since)
        percent: dict[int, float] = {}
        for figure in () if first else figures:
            if figure.smUtil <= _FULL_PERCENT:
                percent[figure.pid] = max(percent.get(figure.pid, 0.0), float(figure.smUtil))
        return percent

    def _whole(self, query: Callable[[], Any]) -> Any:
        """The whole list: it is asked for again where it grew in between."""
        for attempt in range(_TRIES):
            try:
                return query()
            except self._nvml.NVMLError as error:
                if error.value == _SUCCESS:
                    return ()
                if error.value != _INSUFFICIENT_SIZE or attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last try returns or raises")
