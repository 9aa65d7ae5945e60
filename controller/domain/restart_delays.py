"""Delays of restarts after failures and repeated ends, and when an instance leaves its worker.

The first ends in a row that are not the instance's fault restart it at once, later ends after a growing delay: a broken
host or agent can cause them without limit. An orderly end of the agent or its host neither counts nor delays. Ends are
counted from the ledger's record of each start, so a new leader decides alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from controller.domain.instances import EndedStart

# Not the model's fault: the agent or its host ended the process, or its end was not observed.
BLAMELESS: Final = frozenset({"agent_stopped", "disconnected", "gone"})
ORDERLY: Final = "agent_stopped"
ENDED_REPEATEDLY: Final = "ended_repeatedly"


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Delays of `base_s`·2ⁿ up to `cap_s`; after `failures_per_worker` in a row an instance is placed again."""

    base_s: float = 10.0
    cap_s: float = 300.0
    failures_per_worker: int = 3
    on_failure_retries: int = 6  # failures in a row that restart: on_failure allows
    stable_after_s: float = 300.0  # running for this long resets the failure count
    blameless_at_once: int = 3  # ends in a row without its fault, after each of which it restarts without delay

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after the n-th failure in a row (n from 1)."""
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 30))

    def delay_after_blameless_s(self, ends: int) -> float:
        """Seconds to wait after the n-th end in a row (n from 1) that was not the instance's fault."""
        return 0.0 if ends <= self.blameless_at_once else self.delay_s(ends - self.blameless_at_once)

    def leaves_worker(self, failures: int) -> bool:
        """Whether an instance leaves its worker after the n-th failure in a row."""
        return failures > 0 and failures % self.failures_per_worker == 0


def ends_in_a_row(runs: Sequence[EndedStart], stable_after_s: float) -> int:
    """The number of ends since the last start that was stable, at least 1. `runs`: newest first.

    All ends count, except orderly ends.
    """
    stable = timedelta(seconds=stable_after_s)
    lasted = next((n for n, run in enumerate(runs) if run.ended - run.started >= stable), len(runs))
    return max(1, sum(not run.orderly for run in runs[:lasted]))
