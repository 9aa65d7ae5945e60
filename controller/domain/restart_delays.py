"""How long an instance waits after a failure or a repeated end, and when it leaves its worker.

Of ends that are not the instance's fault, the first ones in a row restart it at once, later ones after a growing delay:
a broken host, or an agent alone, can cause them without end. An orderly end of the agent or its host neither counts nor
delays. How often they came is read from what the ledger keeps of each start, so a new leader judges alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from controller.domain.instances import RunFacts

# Not the model's fault: the agent or its host ended the process, or nothing saw how it ended.
BLAMELESS: Final = frozenset({"agent_stopped", "disconnected", "gone"})
ORDERLY: Final = "agent_stopped"
ENDED_REPEATEDLY: Final = "ended_repeatedly"


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Delays of `base_s`·2ⁿ up to `cap_s`; after `failures_per_worker` in a row an instance is placed again."""

    base_s: float = 10.0
    cap_s: float = 300.0
    failures_per_worker: int = 3
    on_failure_retries: int = 6  # restart: on_failure allows so many failures in a row
    stable_after_s: float = 300.0  # running for that long resets the failure count
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


def ends_in_a_row(runs: Sequence[RunFacts], stable_after_s: float) -> int:
    """How many starts ended since the last one that lasted long enough, at least 1. `runs`: newest first.

    All ends but orderly ones count, whatever their cause.
    """
    stable = timedelta(seconds=stable_after_s)
    lasted = next((n for n, run in enumerate(runs) if run.ended - run.began >= stable), len(runs))
    return max(1, sum(not run.orderly for run in runs[:lasted]))
