"""Ages, durations, sizes and names of GPUs as text. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from schemas.printing import one_line

if TYPE_CHECKING:  # slow to import
    from schemas.api.gpus import GpuView

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_GPU_PREFIX: Final = "GPU-"
_MIG_PREFIX: Final = "MIG-"
DASH: Final = "-"


def age(since: datetime | None, now: datetime) -> str:
    """The time since then in one unit: `45s`, `12m`, `5h`, `3d`; `-` if unknown."""
    if since is None:
        return DASH
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 2 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    return f"{seconds // _DAY}d"


def span(seconds: float) -> str:
    """A duration in the largest unit of which it is a multiple: `90s`, `10m`, `7d`."""
    for unit_s, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


def duration(seconds: float) -> str:
    """A duration in its two largest units: `50s`, `4m10s`, `2h05m`, `3d04h`."""
    left = max(0, int(seconds))
    for unit_s, unit, part_s, part in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "m"), (_MINUTE, "m", 1, "s")):
        if left >= unit_s:
            return f"{left // unit_s}{unit}{left % unit_s // part_s:02}{part}"
    return f"{left}s"


def when(at: datetime | None, now: datetime) -> str:
    """A time in the reader's time zone, with its offset, and its distance from now; `-` if unknown."""
    if at is None:
        return DASH
    text = at.astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{text} (in {age(now, at)})" if at > now else f"{text} ({age(at, now)} ago)"


def local_time(at: datetime | None) -> str:
    """A time in the reader's time zone, to the second; `-` if unknown."""
    return DASH if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def gib(mib: int | None) -> str:
    """MiB as GiB, with at most one decimal; `-` if unknown, which is not zero."""
    if mib is None:
        return DASH
    return f"{mib / 1024:.1f}".removesuffix(".0") + "GiB"


def percent(value: float | None) -> str:
    """A percentage; `-` if unknown, which is not zero."""
    return DASH if value is None else f"{value:.0f}%"


def hours(value: float | None) -> str:
    """GPU hours: two decimals below 100, none above; `-` if unknown. Only zero is 0.00."""
    if value is None:
        return DASH
    if 0 < value < 0.005:  # noqa: PLR2004 - half of the last decimal
        return "<0.01"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - fits a column


def short_gpu(uuid: str) -> str:
    """The first block of its UUID; of a MIG slice with the prefix."""
    prefix = _MIG_PREFIX if uuid.startswith(_MIG_PREFIX) else ""
    return prefix + uuid.removeprefix(_GPU_PREFIX).removeprefix(prefix).split("-")[0]


def gpu_name(uuid: str, worker: str, index: int | None) -> str:
    """The name of a GPU in tables: `gpu-a1:0`; without an index, as of a slice, the first block of its UUID."""
    return short_gpu(uuid) if index is None else f"{worker}:{index}"


def name_of_gpu(view: "GpuView") -> str:
    """The name of a GPU in tables. Slices have no index; another GPU may have that of an absent one."""
    status = view.status
    return gpu_name(view.uid, status.worker, status.index if status.present and status.parent is None else None)


def first_gpus(uuids: Sequence[str]) -> str:
    """The first two UUIDs, and the number of the others."""
    shown = ",".join(uuids[:2])
    return (shown or DASH) + (f" +{len(uuids) - 2}" if len(uuids) > 2 else "")  # noqa: PLR2004 - the two shown


def or_dash(text: str | None) -> str:
    return text or DASH


def printable(text: str) -> str:
    """A line without control characters, since text of the server must not control the terminal."""
    return one_line(text)
