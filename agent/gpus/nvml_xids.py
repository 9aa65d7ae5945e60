"""Waits for the driver's error events (Xids) in a thread of its own, so that no reading waits for it."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

_WAIT_MS: Final = 5_000
_RETRY_S: Final = 5.0
_TIMEOUT: Final = 10
_UNSUPPORTED: Final = frozenset({3, 4, 13})
_NO_INSTANCE: Final = 0xFFFFFFFF
_MOST_KINDS: Final = 1_000  # counted between two readings


class CountedEvents:
    """Counts equal events as one entry, so that a storm cannot displace a grave event."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int | None], int] = {}
        self.dropped = 0  # events of kinds beyond the bound

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event["uuid"], event["xid"], event["gpu_instance"]
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            self.dropped += 1
            return
        self._counts[kind] = self._counts.pop(kind, 0) + 1

    def counts(self) -> list[dict[str, Any]]:
        """By newest event: {"uuid", "xid", "gpu_instance" (None outside MIG), "count"}."""
        return [
            {"uuid": uuid, "xid": xid, "gpu_instance": gpu_instance, "count": count}
            for (uuid, xid, gpu_instance), count in self._counts.items()
        ]


class XidLoop:
    """The loop starts with the first GPUs and ends with the process."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._wanted: dict[str, Any] = {}
        self._counted = CountedEvents()
        self._unsupported: set[str] = set()
        self._thread: threading.Thread | None = None

    def watch(self, handles: Mapping[str, Any]) -> None:
        """Takes the events of these GPUs, by UUID; of new GPUs a few seconds later."""
        with self._lock:
            self._wanted = dict(handles)
        if self._thread is None and handles:
            self._thread = threading.Thread(target=self._run, name="xids", daemon=True)
            self._thread.start()

    def take(self) -> tuple[list[dict[str, Any]], int]:
        """The events since the last call, as `CountedEvents.counts`, and the number of dropped events."""
        with self._lock:
            counted, self._counted = self._counted, CountedEvents()
        return counted.counts(), counted.dropped

    def unsupported(self) -> list[str]:
        """UUIDs of GPUs whose driver does not report Xids."""
        with self._lock:
            return sorted(self._unsupported)

    def _run(self) -> None:
        while True:
            try:
                self._collect()
            except self._nvml.NVMLError:  # readings report why; a broken library ends the process
                time.sleep(_RETRY_S)

    def _collect(self) -> None:
        """Takes events until the library fails."""
        # A changed set of GPUs is watched before the old watch ends: no event of a remaining GPU is lost, such as right
        # after another GPU's loss. The driver may report an event twice in between.
        watch = self._watch_wanted()
        while True:
            try:
                while watch.uuids == self._wanted.keys():
                    self._note(watch.wait(_WAIT_MS))
                following = self._watch_wanted()
                with contextlib.suppress(self._nvml.NVMLError):
                    while self._note(watch.wait(0)):
                        pass
            finally:
                watch.free()
            watch = following

    def _watch_wanted(self) -> "_Watch":
        with self._lock:
            handles = dict(self._wanted)
        watch = _Watch(self._nvml, handles)
        with self._lock:
            self._unsupported = watch.unsupported
        return watch

    def _note(self, event: dict[str, Any] | None) -> bool:
        if event is None:
            return False
        if event["uuid"] is not None:
            with self._lock:
                self._counted.add(event)
        return True


class _Watch:
    def __init__(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self.uuids = handles.keys()
        self.unsupported: set[str] = set()  # GPUs whose driver does not report Xids
        # By the handle, a pointer, since the UUID of a lost GPU's event cannot be queried.
        self._by_address: dict[int | None, str] = {}
        self._events = nvml.nvmlEventSetCreate()
        for uuid, handle in handles.items():
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                self._by_address[_address(handle)] = uuid
            except nvml.NVMLError as error:
                if error.value in _UNSUPPORTED:
                    self.unsupported.add(uuid)

    def wait(self, limit_ms: int) -> dict[str, Any] | None:
        """The next event; None after the limit. The UUID of other kinds of events is None."""
        try:
            data = self._nvml.nvmlEventSetWait_v2(self._events, limit_ms)
        except self._nvml.NVMLError as error:
            if error.value != _TIMEOUT:
                raise
            return None
        ours = data.eventType == self._nvml.nvmlEventTypeXidCriticalError
        return {
            "uuid": self._by_address.get(_address(data.device)) if ours else None,
            "xid": data.eventData,
            "gpu_instance": None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId,
        }

    def free(self) -> None:
        self._nvml.nvmlEventSetFree(self._events)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
