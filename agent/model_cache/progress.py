"""How far a fetch is, in words; and whether it stands still. Pure: the caller says what time it is."""

from typing import Final

from schemas.units import format_bytes

_TELL_EVERY_S: Final = 5.0
_RATE_OVER_S: Final = 10.0


class Progress:
    """Of one fetch."""

    def __init__(self, name: str, stall_s: float, now: float, verb: str = "fetching") -> None:
        self._name = f"{verb} {name}"
        self._stall_s = stall_s
        self._total = 0
        self._bytes = 0
        self._moved_at = now
        self._told_at = float("-inf")
        self._seen: list[tuple[float, int]] = []  # (when, bytes) of the last seconds

    def plan(self, total: int, there: int) -> None:
        """What is to be fetched, and how much of it is there from an earlier attempt."""
        self._total, self._bytes = total, there
        self._told_at = float("-inf")

    def expect(self, total: int) -> None:
        """What is to be fetched in all, as far as it is known by now."""
        self._total = total

    def waits(self, there: int, now: float) -> str:
        """Another process of this host fetches it, and so much is there; returns what to say, empty if it was said."""
        if there != self._bytes:
            self._bytes, self._moved_at = there, now
        if now - self._told_at < _TELL_EVERY_S:
            return ""
        self._told_at = now
        return f"{self._name}: another process of this host does so, {format_bytes(there)} are there"

    def left(self, there: int) -> int:
        """Bytes that are still to come."""
        return max(0, self._total - there)

    def told(self, there: int | None, now: float) -> str:
        """Takes what is there now; returns what to say, empty if it was said a moment ago."""
        if there is not None:
            if there != self._bytes:
                self._bytes, self._moved_at = there, now
            self._seen.append((now, there))
            while len(self._seen) > 1 and now - self._seen[1][0] >= _RATE_OVER_S:
                self._seen.pop(0)
        if now - self._told_at < _TELL_EVERY_S:
            return ""
        self._told_at = now
        if not self._total:
            return self._name
        return f"{self._name}: {format_bytes(self._bytes)} of {format_bytes(self._total)}{self._rate()}"

    def _rate(self) -> str:
        if len(self._seen) <= 1:
            return ""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return f", {format_bytes(int(max(0, after - before) / (last - first)))}/s" if last > first else ""

    def stalled(self, now: float) -> bool:
        return now - self._moved_at > self._stall_s
