"""Reads the GPUs through NVML. The only file that imports pynvml; a separate program, because a driver call may hang.

It answers each input line with one JSON line: {"driver", "gpus": [...], "xids": [...]} or {"fatal": why, "code"}. A GPU
is {"index", "uuid", "fields"} or {"index", "error", "code"}; a MIG slice also has its "parent". A field is {"value"},
{"unsupported": true} or {"error", "code"}; slow fields are only in answers for which they were read again. The answer
to "sample" also has {"work": {uuid: {"running": [pid], "memory_mib": {pid: MiB}, "percent": {pid: percent}}}}.
It exits at the end of its input, and when the agent dies. It imports little: no package but pynvml and msgspec.
"""

import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from agent.gpus.nvml_fields import (
    DETAILS,
    FAST,
    LINKS,
    MIB,
    STANDING,
    Fields,
    FieldTable,
    LibraryBrokenError,
    read_fields,
    text,
)
from agent.gpus.nvml_xids import XidLoop

_PR_SET_PDEATHSIG = 1
_NO_LIBRARY = -1  # as in `answers.py`
_NO_HANDLE = 6  # NVML_ERROR_NOT_FOUND: no slice has this index
# Seconds after which fields are read again; a GPU's first reading has all.
_SLOW: tuple[tuple[FieldTable, float], ...] = ((STANDING, 4.5), (DETAILS, 10.0), (LINKS, 60.0))
_SUCCESS: Final = 0  # nvidia-ml-py raises it for an empty list
_NO_PROCESSES: Final = frozenset({3, 4, 13, 25})
_NOT_FOUND: Final = 6
_INSUFFICIENT_SIZE: Final = 7
_TRIES: Final = 4
_FULL_PERCENT: Final = 100.0


class ProcessReader:
    """Reads the processes of GPUs. Keeps the driver's time (microseconds) of the newest figures by GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._last: dict[str, int] = {}

    def read(self, handles: Mapping[str, Any]) -> dict[str, Any]:
        """Processes by UUID; an unreadable GPU is left out. Raises LibraryBrokenError."""
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
        """The processes that have the GPU open, with their memory in MiB (None: unknown)."""
        nvml = self._nvml
        memory: dict[int, int | None] = {}
        for query in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                for process in self._complete(functools.partial(query, handle)):
                    used = process.usedGpuMemory
                    known = memory.get(process.pid)
                    memory[process.pid] = known if used is None else max(used // MIB, known or 0)
            except nvml.NVMLError as error:
                if error.value not in _NO_PROCESSES:
                    raise
        return memory

    def _percent_by_pid(self, handle: Any, uuid: str) -> dict[int, float] | None:
        """The highest utilization since the last call, by pid; None if the driver does not report it for this GPU."""
        first = uuid not in self._last  # then figures may be older than the readings: the driver keeps them for seconds
        since = self._last.get(uuid, 0)
        try:
            figures = self._complete(lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since))
        except self._nvml.NVMLError as error:
            if error.value in _NO_PROCESSES:
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

    def _complete(self, query: Callable[[], Any]) -> Any:
        """Repeats a query whose list grew after the query for its size."""
        for attempt in range(_TRIES):
            try:
                return query()
            except self._nvml.NVMLError as error:
                if error.value == _SUCCESS:
                    return ()
                if error.value != _INSUFFICIENT_SIZE or attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last try returns or raises")


def main() -> None:
    _die_with_parent()
    try:
        import pynvml  # noqa: PLC0415 - a failed import is part of the answer
    except ImportError:
        _answer({"fatal": "the package nvidia-ml-py is not installed", "code": _NO_LIBRARY})
        return
    reader: Reader | None = None
    for question in sys.stdin:
        try:
            if reader is None:
                pynvml.nvmlInit()
                reader = Reader(pynvml)
            _answer(reader.read(processes=question.strip() == "sample"))
        except (pynvml.NVMLError, LibraryBrokenError) as error:
            _answer({"fatal": str(error), "code": getattr(error, "value", 0)})


class Reader:
    """Reads all GPUs and slices, and slow fields at intervals. `clock` returns seconds."""

    def __init__(self, nvml: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._read_at: dict[tuple[str, int], float] = {}
        self._in_mig_mode: dict[str, bool] = {}
        self._processes = ProcessReader(nvml)
        self._xids = XidLoop(nvml)

    def read(self, *, processes: bool) -> dict[str, Any]:
        """Raises LibraryBrokenError if only a new process can read again."""
        handles: dict[str, Any] = {}
        gpus: list[dict[str, Any]] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                gpus += self._gpu_and_slices(index, handles)
            except self._nvml.NVMLError as error:
                LibraryBrokenError.check(error)
                gpus.append({"index": index, "error": str(error), "code": error.value})
        self._xids.watch({gpu["uuid"]: handles[gpu["uuid"]] for gpu in gpus if "uuid" in gpu and "parent" not in gpu})
        xids, dropped = self._xids.take()
        answer: dict[str, Any] = {
            "driver": text(self._nvml.nvmlSystemGetDriverVersion()),
            "gpus": gpus,
            "xids": xids,
            "xids_dropped": dropped,
            "xids_unsupported": self._xids.unsupported(),
        }
        if processes:
            answer["work"] = self._processes.read(handles)
        return answer

    def _gpu_and_slices(self, index: int, handles: dict[str, Any]) -> list[dict[str, Any]]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(self._nvml.nvmlDeviceGetUUID(handle))
        fields = self._fields(uuid, handle)
        handles[uuid] = handle
        gpus: list[dict[str, Any]] = [{"index": index, "uuid": uuid, "fields": fields}]
        if "mig_mode" in fields:
            self._in_mig_mode[uuid] = bool(fields["mig_mode"].get("value"))
        for slice_handle in self._slices(handle) if self._in_mig_mode[uuid] else ():
            slice_uuid = text(self._nvml.nvmlDeviceGetUUID(slice_handle))
            own = self._fields(slice_uuid, slice_handle)
            handles[slice_uuid] = slice_handle
            gpus.append({"index": index, "uuid": slice_uuid, "parent": uuid, "fields": own})
        return gpus

    def _slices(self, handle: Any) -> Iterator[Any]:
        for number in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                yield self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except self._nvml.NVMLError as error:
                if error.value != _NO_HANDLE:
                    raise

    def _fields(self, uuid: str, handle: Any) -> Fields:
        fields = read_fields(FAST, self._nvml, handle)
        now = self._clock()
        for number, (table, every_s) in enumerate(_SLOW):
            if now - self._read_at.get((uuid, number), float("-inf")) >= every_s:
                fields |= read_fields(table, self._nvml, handle)
                self._read_at[uuid, number] = now
        return fields


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # the agent died before the signal was set


if __name__ == "__main__":
    main()
