"""What the child that reads NVML answers, parsed. Each field is a value, unsupported or an error."""

from typing import Any, Final

import msgspec

from agent.gpus.reader import GpuWork
from schemas.wire import Wire


class FieldReading(Wire, frozen=True, kw_only=True):
    """One field. Exactly one of the three holds: `unsupported`, an `error` with NVML's code, or a value."""

    value: Any = None
    unsupported: bool = False
    error: str = ""
    code: int = 0


class GpuAnswer(Wire, frozen=True, kw_only=True):
    """One GPU or slice. With an `error` nothing of it could be read, and its UUID may be unknown.

    `fields` has the slow ones only where they were read again.
    """

    index: int
    uuid: str | None = None
    parent: str | None = None
    fields: dict[str, FieldReading] = msgspec.field(default_factory=dict)
    error: str = ""
    code: int = 0


class XidEvent(Wire, frozen=True, kw_only=True):
    """Equal error events of the driver since the last answer; in MIG mode perhaps of one GPU instance."""

    uuid: str
    xid: int
    gpu_instance: int | None = None
    count: int = 1


NO_LIBRARY: Final = -1  # in place of NVML's codes: the package through which it is read is not installed


class ChildAnswer(Wire, frozen=True, kw_only=True):
    """A line of the child: either `fatal` with NVML's code, or driver and GPUs, with `work` if it was asked for."""

    fatal: str | None = None
    code: int = 0
    driver: str | None = None
    gpus: tuple[GpuAnswer, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    xids_dropped: int = 0  # events of more kinds than the child counts
    xids_unsupported: tuple[str, ...] = ()
    work: dict[str, GpuWork] = msgspec.field(default_factory=dict)
