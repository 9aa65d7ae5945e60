"""How long an instance waits after a failure or a repeated end, and when it leaves its worker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Delays of `base_s`·2ⁿ up to `cap_s`; after `failures_per_worker` in a row an instance is placed again."""

    base_s: float = 10.0
    cap_s: float = 300.0
    failures_per_worker: int = 3
    on_failure_retries: int = 6  # restart: on_failure allows so many failures in a row
    stable_after_s: float = 300.0  # running for so long resets the failure count
    blameless_at_once: int = 3  # ends in a row that are not the instance's fault, after which it restarts without delay

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after the n-th failure in a row (n from 1)."""
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))

    def delay_after_blameless_s(self, ends: int) -> float:
        """Seconds to wait after the n-th end in a row (n from 1), where it was not the instance's fault."""
        return 0.0 if ends <= self.blameless_at_once else self.delay_s(ends - self.blameless_at_once)

    def leaves_worker(self, failures: int) -> bool:
        """Whether the n-th failure in a row is the last one on its worker."""
        return failures > 0 and failures % self.failures_per_worker == 0
