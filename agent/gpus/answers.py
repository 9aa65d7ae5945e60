"""Answers of the child that reads NVML."""

from typing import Any, Final

import msgspec

from agent.gpus.reader import GpuWork
from schemas.wire import Wire


class FieldReading(Wire, frozen=True, kw_only=True):
    """One field: either `unsupported`, an `error` with NVML's code, or a value."""

    value: Any = None
    unsupported: bool = False
    error: str = ""
    code: int = 0


class GpuAnswer(Wire, frozen=True, kw_only=True):
    """One GPU or slice. `error`: it could not be read, and its UUID may be unknown."""

    index: int
    uuid: str | None = None
    parent: str | None = None
    fields: dict[str, FieldReading] = msgspec.field(default_factory=dict)  # slow fields only where read again
    error: str = ""
    code: int = 0


class XidEvent(Wire, frozen=True, kw_only=True):
    """Equal error events of the driver since the last answer. In MIG mode they may be of one GPU instance."""

    uuid: str
    xid: int
    gpu_instance: int | None = None
    count: int = 1


NO_LIBRARY: Final = -1  # no code of NVML: the package nvidia-ml-py is not installed


class ChildAnswer(Wire, frozen=True, kw_only=True):
    """A line of the child: either `fatal` with NVML's code, or driver and GPUs, with `work` if requested."""

    fatal: str | None = None
    code: int = 0
    driver: str | None = None
    gpus: tuple[GpuAnswer, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    xids_dropped: int = 0  # events of kinds beyond the child's bound
    xids_unsupported: tuple[str, ...] = ()
    work: dict[str, GpuWork] = msgspec.field(default_factory=dict)
