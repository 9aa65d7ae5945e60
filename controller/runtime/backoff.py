"""How long to wait after a failure: exponential with full jitter. Pure; chance comes as an argument."""

import random
from dataclasses import dataclass

# 2.0 ** 1024 overflows a float; no sensible maximum is reached later than this.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `base_s` up to `max_s`, in seconds."""

    base_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.max_s:
            raise ValueError(f"backoff needs 0 < base_s <= max_s, got base_s={self.base_s}, max_s={self.max_s}")

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Return the wait after the `attempt`-th failure in a row (1 is the first): anything from 0 to the full step.

        Full jitter, because those who failed together must not come back together.
        """
        return rng.uniform(0.0, min(self.max_s, self.base_s * 2.0 ** min(max(attempt, 1) - 1, _MAX_DOUBLINGS)))
