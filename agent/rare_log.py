"""Log lines that would come each second while their cause lasts: once a minute."""

from collections.abc import Hashable
from typing import Any, Final

from agent.clock import Clock

_EVERY_S: Final = 60.0
_MOST_CAUSES: Final = 1_000


class RareLog:
    """Writes a line of one event and cause at most once a minute, with the number of those that it left out."""

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._written: dict[Hashable, tuple[float, int]] = {}  # when, and how many were left out since

    def warning(self, event: str, *, cause: Hashable, **context: Any) -> None:
        now_s, key = self._clock(), (event, cause)
        at_s, left_out = self._written.get(key, (float("-inf"), 0))
        if now_s - at_s < _EVERY_S:
            self._written[key] = (at_s, left_out + 1)
            return
        if len(self._written) >= _MOST_CAUSES:
            self._written.clear()
        self._written[key] = (now_s, 0)
        repeated = {"repeated": left_out} if left_out else {}
        self._log.warning(event, **context, **repeated)
