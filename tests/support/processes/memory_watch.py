"""Watches whether the memory of processes is flat."""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

import psutil

_MIB = 2**20
_POINTS = 240  # at most, of which the slope is found: pairs grow with their square


class MemoryWatch:
    """The resident memory of some processes, again and again.

    Args:
        pids: of processes that live through the whole time, by the names they get here.
        every_s: the time between two looks.
    """

    def __init__(self, pids: Mapping[str, int], every_s: float) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._every_s = every_s
        self.mib: dict[str, list[float]] = {name: [] for name in pids}

    async def run(self, until_s: float) -> None:
        """Looks until then, by the loop's clock."""
        loop = asyncio.get_running_loop()
        while (rest := until_s - loop.time()) > 0:
            for name, process in self._processes.items():
                self.mib[name].append(process.memory_info().rss / _MIB)
            await asyncio.sleep(min(rest, self._every_s))

    def growth_mib(self) -> dict[str, float]:
        """By how much each has grown after the first third, in which caches fill."""
        return {name: growth(values[len(values) // 3 :]) for name, values in self.mib.items()}

    def summary(self) -> str:
        """First, last and largest figures, and the growth."""
        grown = self.growth_mib()
        return "; ".join(
            f"{name} {values[0]:.0f} to {values[-1]:.0f}, at most {max(values):.0f}, growth {grown[name]:+.1f} MiB"
            for name, values in self.mib.items()
        )


def growth(values: Sequence[float]) -> float:
    """The slope over the whole of evenly spaced values: the median of all pairs' slopes, so that peaks do not count."""
    step = -(-len(values) // _POINTS) or 1
    thinned = list(enumerate(values))[::step]
    slopes = [(later - earlier) / (j - i) for (i, earlier), (j, later) in combinations(thinned, 2)]
    return statistics.median(slopes) * (len(values) - 1) if slopes else 0.0
