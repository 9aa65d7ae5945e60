"""The progress of a fetch, as text, and whether it has stalled. Pure."""

from typing import Final

from schemas.units import format_bytes

_REPORT_EVERY_S: Final = 5.0
_RATE_OVER_S: Final = 10.0


class Progress:
    """The progress of one fetch. Times are those of the caller's monotonic clock."""

    def __init__(self, name: str, stall_s: float, now: float, verb: str = "fetching") -> None:
        self._name = f"{verb} {name}"
        self._stall_s = stall_s
        self._total = 0
        self._bytes = 0
        self._moved_at = now
        self._reported_at = float("-inf")
        self._samples: list[tuple[float, int]] = []  # (when, bytes) of the last seconds

    def plan(self, total: int, there: int) -> None:
        """Bytes to fetch, and those that an earlier attempt has left."""
        self._total, self._bytes = total, there
        self._reported_at = float("-inf")

    def expect(self, total: int) -> None:
        """All bytes to fetch, as known by now."""
        self._total = total

    def update_by_other(self, there: int, now: float) -> str:
        """Progress of another process that fetches the model; returns a text, empty if one was reported recently."""
        if there != self._bytes:
            self._bytes, self._moved_at = there, now
        if now - self._reported_at < _REPORT_EVERY_S:
            return ""
        self._reported_at = now
        return f"{self._name}: another process of this host does so, {format_bytes(there)} are there"

    def left(self, there: int) -> int:
        """Bytes still to fetch."""
        return max(0, self._total - there)

    def update(self, there: int | None, now: float) -> str:
        """Takes the present bytes; returns a text, empty if one was reported recently."""
        if there is not None:
            if there != self._bytes:
                self._bytes, self._moved_at = there, now
            self._samples.append((now, there))
            while len(self._samples) > 1 and now - self._samples[1][0] >= _RATE_OVER_S:
                self._samples.pop(0)
        if now - self._reported_at < _REPORT_EVERY_S:
            return ""
        self._reported_at = now
        if not self._total:
            return self._name
        return f"{self._name}: {format_bytes(self._bytes)} of {format_bytes(self._total)}{self._rate()}"

    def _rate(self) -> str:
        if len(self._samples) <= 1:
            return ""
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return f", {format_bytes(int(max(0, after - before) / (last - first)))}/s" if last > first else ""

    def stalled(self, now: float) -> bool:
        return now - self._moved_at > self._stall_s
