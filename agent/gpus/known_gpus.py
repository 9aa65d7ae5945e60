"""The host's GPUs over successive answers, also those that are lost, silent or were never readable. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec

from agent.gpus.answers import ChildAnswer, FieldReading, GpuAnswer, XidEvent
from agent.state.host_state import Condemned
from schemas.wire import GpuDetails, Health, ReportedGpu
from schemas.xids import CONDEMNING, FALLEN_OFF

HOLD_S: Final = 5.0  # against flapping: until then a silent or unlisted GPU is unknown, not unhealthy
_LOST: Final = 15
_RESET_REQUIRED: Final = 16
_MOST_MIB: Final = 2**40
_HARMLESS_RECOVERY: Final = frozenset({"none", "drain_p2p"})
_FOR_DETAILS: Final = frozenset(GpuDetails.__struct_fields__)
_FAST: Final = frozenset({"memory", "utilization"})
_STANDING: Final = frozenset({"memory", "utilization", "model", "compute_capability", "mig_mode", "remapped_rows"})
_ROWS: Final = ("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed")


@dataclass(slots=True)
class _Gpu:
    """The state of one GPU or slice."""

    uuid: str
    index: int
    parent: str | None = None
    memory_mib: int = 0
    fields: dict[str, FieldReading] = field(default_factory=dict)  # by name, as last read
    silent_s: float | None = None  # since when it is unreadable or unlisted
    trouble: str = ""  # why it is
    condemned: str = ""  # the health reason of an Xid
    asks_recovery: bool = False  # the driver has requested a recovery since then
    condemned_at_j: float | None = None  # the energy used by then, in joules
    xids: Counter[int] = field(default_factory=Counter)  # events by code
    last_xid: int | None = None
    ever_read: bool = False
    details: GpuDetails | None = None  # of these fields; None: outdated

    def value(self, name: str) -> Any:
        """None: unsupported, an error, or not read yet."""
        reading = self.fields.get(name)
        return None if reading is None else reading.value


class KnownGpus:
    """The host's GPUs. `condemned` was kept by an earlier agent of this boot, by UUID.

    `host` is a unique name, part of the UUID of GPUs whose own was never read. `host_memory_mib` is the size of GPUs
    that share the host's memory.
    """

    def __init__(
        self, host: str, host_memory_mib: int, condemned: Mapping[str, Condemned] = MappingProxyType({})
    ) -> None:
        self._host = host
        self._host_memory_mib = host_memory_mib
        self._gpus: dict[str, _Gpu] = {}
        self._restored = dict(condemned)  # of GPUs that have not been read yet
        self._xids_unsupported: frozenset[str] = frozenset()

    def take(self, answer: ChildAnswer, now_s: float) -> tuple[ReportedGpu, ...]:
        """All GPUs after an answer, by index."""
        self._xids_unsupported = frozenset(answer.xids_unsupported)
        read = {gpu.uuid: gpu for gpu in answer.gpus if gpu.uuid is not None}
        for uuid, gpu in read.items():
            self._take_read(uuid, gpu)
        unlisted = [uuid for uuid in self._gpus if uuid not in read]
        for failed in (gpu for gpu in answer.gpus if gpu.uuid is None):
            uuid = self._matching(failed, unlisted)
            if uuid in unlisted:
                unlisted.remove(uuid)
            self._take_failed(uuid, failed, now_s)
        for uuid in unlisted:
            self._take_unlisted(uuid, read, now_s)
        for event in answer.xids:
            self._take_xid(event)
        return tuple(
            sorted((self._report(known, now_s) for known in self._gpus.values()), key=lambda f: (f.index, f.uuid))
        )

    def condemned(self) -> dict[str, Condemned]:
        """Kept for the next agent of this boot, by UUID."""
        known = {
            gpu.uuid: Condemned(reason=gpu.condemned, asks_recovery=gpu.asks_recovery, energy_j=gpu.condemned_at_j)
            for gpu in self._gpus.values()
            if gpu.condemned
        }
        return self._restored | known

    def dismiss(self, uuids: Collection[str]) -> None:
        """Forgets the Xids of these GPUs and of their slices, as an operator requests."""
        for gpu in self._gpus.values():
            if gpu.uuid in uuids or gpu.parent in uuids:
                gpu.condemned, gpu.asks_recovery = "", False
        self._restored = {uuid: known for uuid, known in self._restored.items() if uuid not in uuids}

    def _gpu(self, uuid: str, index: int) -> _Gpu:
        """The GPU; a new GPU starts in the state that an earlier agent kept."""
        if uuid not in self._gpus:
            gpu = self._gpus[uuid] = _Gpu(uuid, index)
            if (known := self._restored.pop(uuid, None)) is not None:
                gpu.condemned, gpu.asks_recovery = known.reason, known.asks_recovery
                gpu.condemned_at_j = known.energy_j
        return self._gpus[uuid]

    def _take_read(self, uuid: str, read: GpuAnswer) -> None:
        gpu = self._gpu(uuid, read.index)
        if gpu.silent_s is not None and gpu.trouble.startswith("gpu_lost"):
            gpu.condemned = ""  # only a reset brings a lost GPU back
        if _was_reset(gpu, read):
            gpu.condemned = ""
        gpu.index, gpu.parent, gpu.silent_s, gpu.trouble, gpu.ever_read = read.index, read.parent, None, "", True
        gpu.fields.update(read.fields)
        if read.fields.keys() - _FAST:
            gpu.details = None
        recovery = read.fields.get("recovery")
        if recovery is not None and recovery.value is not None and gpu.condemned:
            if recovery.value != "none":
                gpu.asks_recovery = True
            elif gpu.asks_recovery:  # the recovery was done
                gpu.condemned = ""

    def _matching(self, failed: GpuAnswer, unlisted: list[str]) -> str:
        """The UUID of a GPU that reported none: of the GPU with its index, else of the only silent GPU, else new."""
        silent = [uuid for uuid in unlisted if self._gpus[uuid].parent is None]
        same = [uuid for uuid in silent if self._gpus[uuid].index == failed.index]
        if same or len(silent) == 1:
            return (same or silent)[0]
        return f"GPU-unreadable-{failed.index}-{self._host}"

    def _take_failed(self, uuid: str, failed: GpuAnswer, now_s: float) -> None:
        gpu = self._gpu(uuid, failed.index)
        gpu.index = failed.index
        code = {_LOST: "gpu_lost", _RESET_REQUIRED: "reset_required"}.get(failed.code, "gpu_unreadable")
        gpu.trouble = f"{code}: {failed.error}"
        if gpu.silent_s is None:
            gpu.silent_s = now_s

    def _take_unlisted(self, uuid: str, read: Mapping[str, GpuAnswer], now_s: float) -> None:
        """The driver no longer lists the GPU. A slice whose GPU is listed was removed by an operator."""
        gpu = self._gpus[uuid]
        if gpu.silent_s is None:
            gpu.silent_s, gpu.trouble = now_s, "gpu_unreadable: the driver no longer lists it"
        removed = gpu.parent is not None and gpu.parent in read
        if removed or not gpu.ever_read or now_s - gpu.silent_s >= HOLD_S:
            del self._gpus[uuid]

    def _take_xid(self, event: XidEvent) -> None:
        """A condemning event concerns the slice that it names, else the GPU and all its slices."""
        reason = reason_of(event.xid)
        if (known := self._gpus.get(event.uuid)) is not None:
            known.xids[event.xid] += event.count
            known.last_xid, known.details = event.xid, None
        if reason is None:
            return
        for gpu in self._concerned(event):
            if not gpu.condemned or event.xid == FALLEN_OFF:
                gpu.condemned, gpu.asks_recovery, gpu.condemned_at_j = reason, False, gpu.value("energy_j")

    def _concerned(self, event: XidEvent) -> list[_Gpu]:
        slices = [gpu for gpu in self._gpus.values() if gpu.parent == event.uuid]
        own = [gpu for gpu in slices if gpu.value("gpu_instance") == event.gpu_instance]
        if event.gpu_instance is not None and own:
            return own
        return [gpu for gpu in self._gpus.values() if event.uuid in (gpu.uuid, gpu.parent)]

    def _report(self, gpu: _Gpu, now_s: float) -> ReportedGpu:
        memory_mib, used_mib, memory_trouble = self._memory(gpu)
        health, reason = _health(gpu, memory_trouble, now_s)
        parent = self._gpus.get(gpu.parent) if gpu.parent else None
        if health == "ok" and parent is not None and (of_parent := _health(parent, "", now_s))[0] != "ok":
            health, reason = of_parent
        readable = gpu.silent_s is None
        utilization = gpu.value("utilization") if readable else None
        return ReportedGpu(
            uuid=gpu.uuid,
            index=gpu.index,
            model=_model(gpu, memory_mib),
            memory_mib=memory_mib,
            compute_capability=gpu.value("compute_capability"),
            mig_mode=bool(gpu.value("mig_mode")) and gpu.parent is None,
            health=health,
            health_reason=reason,
            used_mib=used_mib if readable else None,
            utilization=None if utilization is None else float(utilization),
            parent=gpu.parent,
            details=self._details(gpu) if readable else None,
        )

    def _memory(self, gpu: _Gpu) -> tuple[int, int | None, str]:
        """Size, use, and trouble. An impossible size is ignored; an impossible use is judged elsewhere."""
        reading = gpu.fields.get("memory")
        if reading is None:
            return gpu.memory_mib, None, ""
        if reading.unsupported:
            gpu.memory_mib = self._host_memory_mib
            return gpu.memory_mib, None, "unified_memory: it has no memory of its own but shares the host's"
        if reading.value is None:
            return gpu.memory_mib, None, f"memory_unreadable: {reading.error}"
        total_mib, used_mib = reading.value
        if not 0 < total_mib <= _MOST_MIB:
            return gpu.memory_mib, None, f"memory_unreadable: NVML reports {total_mib} MiB"
        gpu.memory_mib = total_mib
        return total_mib, used_mib, ""

    def _details(self, gpu: _Gpu) -> GpuDetails:
        if gpu.details is not None:
            return gpu.details
        values = {name: gpu.value(name) for name in _FOR_DETAILS}
        rows = gpu.value("remapped_rows")
        if rows is not None:
            values |= dict(zip(_ROWS, (rows[0], rows[1], bool(rows[2]), bool(rows[3])), strict=True))
        named = {name: r for name, r in gpu.fields.items() if name in _FOR_DETAILS | _STANDING}
        unsupported = [name for name, r in named.items() if r.unsupported]
        if gpu.uuid in self._xids_unsupported:
            unsupported.append("xids")
        gpu.details = msgspec.convert(
            {
                **values,
                "xids": {str(code): number for code, number in gpu.xids.most_common(32)},
                "last_xid": gpu.last_xid,
                "unsupported": tuple(sorted(unsupported)),
                "errors": {name: r.error[:200] for name, r in named.items() if r.error},
            },
            GpuDetails,
            strict=False,  # the driver's library returns integers as floats
        )
        return gpu.details


def _was_reset(gpu: _Gpu, read: GpuAnswer) -> bool:
    """Whether its counter of energy has fallen: it restarts when the driver initializes the GPU."""
    energy = read.fields.get("energy_j")
    if energy is None or energy.value is None:
        return False
    before = [known for known in (gpu.condemned_at_j, gpu.value("energy_j")) if known is not None]
    return bool(before) and energy.value < max(before)


def _health(gpu: _Gpu, memory_trouble: str, now_s: float) -> tuple[Health, str]:
    """The health, and the gravest reason: a code and a text."""
    if gpu.silent_s is not None:
        transient = gpu.ever_read and gpu.trouble.startswith("gpu_unreadable") and now_s - gpu.silent_s < HOLD_S
        return ("unknown" if transient else "unhealthy"), gpu.trouble
    rows, recovery = gpu.value("remapped_rows"), gpu.value("recovery")
    for trouble in (
        gpu.condemned,
        "row_remap_failed: remapping of a broken memory row failed" if rows is not None and rows[3] else "",
        f"recovery_wanted: the driver asks for {recovery}" if recovery and recovery not in _HARMLESS_RECOVERY else "",
        memory_trouble,
    ):
        if trouble:
            return "unhealthy", trouble
    return "ok", ""


def _model(gpu: _Gpu, memory_mib: int) -> str:
    """The model's name; a slice's name always contains MIG."""
    model = gpu.value("model") or "unknown GPU"
    if gpu.parent is None or " MIG " in model:
        return str(model)
    return f"{model} MIG {max(1, round(memory_mib / 1024))}gb"


def reason_of(code: int) -> str | None:
    """The health reason of a GPU with this event; None if it does not condemn the GPU."""
    text = CONDEMNING.get(code)
    return None if text is None else f"xid_{code}: {text} (Xid {code})"
