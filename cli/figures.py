"""Figures as people read them: ages, sizes, GPU names. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_GPU_PREFIX: Final = "GPU-"
NOTHING: Final = "-"


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, in the largest unit that tells enough: `45s`, `12m`, `5h`, `3d`; `-` where unknown."""
    if since is None:
        return NOTHING
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 2 * _HOUR:
        return f"{seconds // _MINUTE}m"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR}h"
    return f"{seconds // _DAY}d"


def span(seconds: float) -> str:
    """A duration in its largest whole unit: `90s`, `10m`, `7d`."""
    for unit_s, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


def clock(seconds: float) -> str:
    """A duration in its two largest units: `50s`, `4m10s`, `2h05m`, `3d04h`."""
    whole = max(0, int(seconds))
    for unit_s, unit, part_s, part in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "m"), (_MINUTE, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{unit}{whole % unit_s // part_s:02}{part}"
    return f"{whole}s"


def when(moment: datetime | None, now: datetime) -> str:
    """A moment and how far away it is; `-` where unknown."""
    if moment is None:
        return NOTHING
    text = moment.isoformat(sep=" ", timespec="seconds")
    return f"{text} (in {age(now, moment)})" if moment > now else f"{text} ({age(moment, now)} ago)"


def gib(mib: int | None) -> str:
    """MiB as GiB, with at most one decimal; `-` where unknown, which is not zero."""
    if mib is None:
        return NOTHING
    return f"{mib / 1024:.1f}".removesuffix(".0") + "GiB"


def percent(value: float | None) -> str:
    """A percentage; `-` where unknown, which is not zero."""
    return NOTHING if value is None else f"{value:.0f}%"


def hours(value: float | None) -> str:
    """GPU hours: two decimals where they are few, none where many; `-` where unknown."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - what fits a column


def short_gpu(uuid: str) -> str:
    """The first block of a GPU's UUID."""
    return uuid.removeprefix(_GPU_PREFIX).split("-")[0]


def short_gpus(uuids: Sequence[str]) -> str:
    """The first two GPUs and how many more there are."""
    shown = ",".join(short_gpu(uuid) for uuid in uuids[:2])
    return (shown or NOTHING) + (f" +{len(uuids) - 2}" if len(uuids) > 2 else "")  # noqa: PLR2004 - the two shown


def or_nothing(text: str | None) -> str:
    """The text, or `-`."""
    return text or NOTHING


def printable(text: str) -> str:
    """One line without control characters: what the server says must not steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
