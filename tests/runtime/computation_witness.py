"""Records computations for tests: counts, results by owner, and children."""

from collections import Counter
from collections.abc import Hashable
from typing import Any

import psutil

from controller.runtime.metrics import CountOutcome
from controller.runtime.slots import Work

MEMORY = 512 * 1024 * 1024


class Witness:
    """Both the metrics and the `on_done` of a Computations."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cancels: list[float] = []
        self.children = 0
        self.most_children = 0
        self.reported: list[tuple[Hashable, str, Any]] = []

    def in_flight(self, n: int) -> None:
        self.children = n
        self.most_children = max(self.most_children, n)

    def count(self, purpose: str, outcome: CountOutcome) -> None:
        assert purpose == "analysis"
        self.counts[outcome] += 1

    def cancel_seconds(self, seconds: float) -> None:
        self.cancels.append(seconds)

    def on_done(self, owner: Hashable, input_hash: str, result: Any) -> None:
        self.reported.append((owner, input_hash, result))

    @property
    def owners(self) -> list[Hashable]:
        return [owner for owner, _, _ in self.reported]

    def balanced(self) -> bool:
        """Whether all started computations have ended."""
        counts = self.counts
        return counts["started"] == counts["completed"] + counts["cancelled"] + counts["failed"]


def sleeping(name: str, seconds: float, deadline_s: float = 60.0) -> Work:
    """A computation that sleeps, in a real or a simulated child."""
    return Work("analysis", name, "runtime.child_targets:sleep", seconds, deadline_s, MEMORY)


def children() -> list[int]:
    """All children of computations of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("child_main" in argument for argument in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
