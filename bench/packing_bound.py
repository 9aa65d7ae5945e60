"""An upper bound of the share of a cluster's GPUs that any scheduler can allocate, by weak duality.

The relaxation knows sizes only: a GPU holds any set of shares of at most its size, whole GPUs go to whole-GPU tasks.
CPU, memory and hosts are left out. So the figure can only be too high. Its linear program is that of Gilmore and Gomory
("A Linear Programming Approach to the Cutting-Stock Problem", Operations Research 9, 1961): a price for each size, and
a GPU's price at least that of its dearest filling. Any prices give a bound; subgradient steps lower it.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

STEPS = 20_000
PATIENCE = 60  # steps without progress, after which the target is halved
LEAST = 5e-6  # of all GPUs: less is not worth a step
Floats = npt.NDArray[np.float64]


@dataclass
class Sizes:
    """Tasks in the order of their arrival, counted by the units of a GPU that they request.

    A scheduler that refuses nothing that fits places the same tasks, however it packs and relocates, until the first
    task of one GPU is refused. Later tasks it may place or not.
    """

    placed: Counter[int] = field(default_factory=Counter)
    requested: Counter[int] = field(default_factory=Counter)
    refused: bool = False

    def add(self, size: int, gpus: int, *, placed: bool) -> None:
        """Counts a task of `gpus` GPUs with `size` units of each."""
        if not gpus:
            return
        self.requested[size] += gpus
        self.refused = self.refused or (gpus == 1 and not placed)
        if placed and not self.refused:
            self.placed[size] += gpus


def bound(sizes: Sizes, gpus: int, gpu_units: int) -> float:
    """The largest share of `gpus` that can be allocated, at most 1. `gpu_units`: units of one GPU."""
    shares = np.array(sorted(size for size in sizes.requested if 0 < size < gpu_units))
    low, high = (np.array([of[int(s)] for s in shares], float) for of in (sizes.placed, sizes.requested))
    low_whole, high_whole = sizes.placed[gpu_units], sizes.requested[gpu_units]
    worth = shares / gpu_units
    step_units = int(np.gcd.reduce(np.append(shares, gpu_units)))
    cells, capacity = shares // step_units, gpu_units // step_units
    prices, best, best_prices = worth.copy(), float(gpus), worth.copy()
    target, fruitless = 0.02 * gpus, 0  # below the best
    for _ in range(STEPS):
        filling, price = _dearest(cells, prices, capacity)
        gain, gain_whole = worth - prices, 1.0 - price
        counts = np.where(gain > 0, high, low)
        whole_count = high_whole if gain_whole > 0 else low_whole
        total = float(gain @ counts + gain_whole * whole_count + gpus * price)
        fruitless += 1
        if total < best - 0.1 * target:
            fruitless = 0
        if total < best:
            best, best_prices = total, prices
        if fruitless > PATIENCE:
            target, fruitless, prices = target / 2, 0, best_prices
            if target < LEAST * gpus:
                break
            continue
        slope = filling * (gpus - whole_count) - counts  # of the total in the prices
        length = float(slope @ slope)
        if length == 0.0:
            break
        prices = np.maximum(prices - slope * (total - best + target) / length, 0.0)
    return best / gpus


def _dearest(cells: npt.NDArray[np.int_], prices: Floats, capacity: int) -> tuple[Floats, float]:
    """The dearest filling of one GPU, as the number of each size, and its price: an unbounded knapsack."""
    best, chosen = np.zeros(capacity + 1), np.full(capacity + 1, -1)
    for room in range(1, capacity + 1):
        best[room] = best[room - 1]
        fits = np.flatnonzero(cells <= room)
        if len(fits):
            values = best[room - cells[fits]] + prices[fits]
            top = int(np.argmax(values))
            if values[top] > best[room]:
                best[room], chosen[room] = values[top], fits[top]
    filling, room = np.zeros(len(cells)), capacity
    while room > 0:
        if chosen[room] < 0:
            room -= 1
        else:
            filling[chosen[room]] += 1
            room -= int(cells[chosen[room]])
    return filling, float(best[capacity])
