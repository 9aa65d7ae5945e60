"""How much may come in a second, and at once. Pure; times are seconds, monotonic."""

import math


class Rate:
    """A budget that fills up again.

    Args:
        burst: the amount that may come at once.
        per_s: the amount that may come in a second beyond that.
        most_owed: how much beyond both is counted; more is forgiven.
    """

    def __init__(self, now: float, burst: float, per_s: float, *, most_owed: float = math.inf) -> None:
        self._burst = burst
        self._per_s = per_s
        self._most_owed = most_owed
        self._left = float(burst)
        self._at = now

    def take(self, now: float, amount: float) -> float:
        """Takes what has come; returns the seconds to wait before more."""
        left = min(self._burst, self._left + (now - self._at) * self._per_s) - amount
        self._left = max(left, -self._most_owed)
        self._at = now
        return max(0.0, -self._left / self._per_s)
