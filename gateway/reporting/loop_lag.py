"""How late the event loop is, as sweeps see it."""

from collections import deque
from typing import Final

_REMEMBER_S: Final = 10.0


class LoopLag:
    """Keeps the worst lag of the last ten seconds. All times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._worst: deque[tuple[float, float]] = deque()  # when, and how late a sweep was; lags falling

    def note(self, now: float, lag_s: float) -> None:
        """A sweep came so late."""
        while self._worst and self._worst[-1][1] <= lag_s:
            self._worst.pop()
        self._worst.append((now, lag_s))
        while now - self._worst[0][0] > _REMEMBER_S:
            self._worst.popleft()

    def seconds(self, now: float, due: float) -> float:
        """The worst one; a sweep that was due before `now` counts too."""
        worst = self._worst[0][1] if self._worst else 0.0
        return max(0.0, worst, now - due)
