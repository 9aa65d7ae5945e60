"""Bounds repeated log lines: one of a kind in a period and few kinds in all, with the number of those held back."""

import time
from collections.abc import Callable
from typing import Final

import structlog

PERIOD_S: Final = 60.0
MAX_KINDS: Final = 256

log = structlog.get_logger(__name__)


class LogLimit:
    """Admits a line of each kind in `period_s`, and lines of few kinds: strangers may make kinds up."""

    def __init__(self, period_s: float = PERIOD_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._monotonic = monotonic
        self._kinds: dict[str, tuple[float, int]] = {}  # when a line was admitted, and how many were held back since
        self._others = 0  # held back since the table is full

    def admit(self, kind: str) -> int | None:
        """The number of lines of this kind that were held back before this one; None: hold this one back too."""
        now = self._monotonic()
        at, held_back = self._kinds.get(kind, (float("-inf"), 0))
        if now - at < self._period_s:
            self._kinds[kind] = (at, held_back + 1)
            return None
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            oldest = min(self._kinds, key=lambda known: self._kinds[known][0])
            if now - self._kinds[oldest][0] < self._period_s:
                self._others += 1
                return None
            held_back += self._kinds.pop(oldest)[1]
        held_back, self._others = held_back + self._others, 0
        self._kinds[kind] = (now, 0)
        return held_back


class MalformedLog:
    """Logs malformed requests: one line a minute, with the number of those held back."""

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._limit = LogLimit(monotonic=monotonic)

    def note(self, detail: str) -> None:
        """One malformed request."""
        if (held_back := self._limit.admit("malformed")) is not None:
            log.warning("malformed request", server=self._name, detail=detail, more_before=held_back)
