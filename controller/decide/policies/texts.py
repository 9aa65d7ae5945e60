"""Times, durations and gaps in the messages of verdicts. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

from controller.domain.telemetry.utilization import GpuUse


def name_of(gpu: GpuUse) -> str:
    """A GPU's name in messages."""
    return f"{gpu.uuid} on {gpu.worker}"


def clock_text(at: float) -> str:
    """A time in messages, with date and zone."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration_text(seconds: float) -> str:
    """A duration as in manifests."""
    for unit_s, unit in ((3600, "h"), (60, "m")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"


def gaps_text(gaps: Sequence[tuple[float, float]]) -> str:
    """The last gap, and the number of further gaps. There is one at least."""
    begin, end = gaps[-1]
    others = f" and {len(gaps) - 1} times before" if len(gaps) > 1 else ""
    return f"not read from {clock_text(begin)} to {clock_text(end)}{others}"
