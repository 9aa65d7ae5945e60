"""How much may come in a second, and at once. Pure; times are seconds, monotonic."""


class Rate:
    """A budget that fills up again.

    Args:
        now: the time.
        burst: what may come at once.
        per_s: what may come in a second beyond that.
    """

    def __init__(self, now: float, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at = now

    def take(self, now: float, amount: float) -> float:
        """Takes what has come; returns the seconds to wait before more."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return max(0.0, -self._left / self._per_s)
