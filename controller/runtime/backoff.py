"""Delays after failures: exponential with full jitter. Pure: the random generator is an argument."""

import random
from dataclasses import dataclass

# 2.0 ** 1024 overflows a float; every sensible maximum is reached before this.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `base_s` up to `max_s`, in seconds."""

    base_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.max_s:
            raise ValueError(f"backoff: must have 0 < base_s <= max_s, got base_s={self.base_s}, max_s={self.max_s}")

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Return the delay after the `attempt`-th failure in a row (1 is the first): between 0 and the full step.

        Full jitter, because keys that failed together must not be retried together.
        """
        return rng.uniform(0.0, min(self.max_s, self.base_s * 2.0 ** min(max(attempt, 1) - 1, _MAX_DOUBLINGS)))
