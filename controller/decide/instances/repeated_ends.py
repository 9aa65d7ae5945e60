"""Ends that are not an instance's fault: the first ones in a row restart it at once, later ones after a growing delay.

An orderly end of the agent or its host neither counts nor delays: it comes once in a life of the agent.

An agent alone can report such ends, and a broken host can cause them without end. How often they came is read from what
the ledger keeps of each start, so a new leader judges alike.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from controller.domain.instances import RunFacts

# Not the model's fault: the agent or its host ended the process, or nothing saw how it ended.
BLAMELESS: Final = frozenset({"agent_stopped", "disconnected", "gone"})
ORDERLY: Final = "agent_stopped"
ENDED_REPEATEDLY: Final = "ended_repeatedly"


def ends_in_a_row(runs: Sequence[RunFacts], stable_after_s: float) -> int:
    """How many starts ended since the last one that lasted long enough, at least 1. `runs`: newest first.

    All ends but orderly ones count, whatever their cause.
    """
    stable = timedelta(seconds=stable_after_s)
    lasted = next((n for n, run in enumerate(runs) if run.ended - run.began >= stable), len(runs))
    return max(1, sum(not run.orderly for run in runs[:lasted]))
