"""The bench's bound on what can be allocated: exact where the optimum is known, and never below what was packed."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from packing_bound import Sizes, bound

WHOLE = 100


def sizes(*tasks: tuple[int, int, bool]) -> Sizes:
    found = Sizes()
    for size, number, placed in tasks:
        for _ in range(number):
            found.add(size, 1, placed=placed)
    return found


@pytest.mark.parametrize(
    ("tasks", "share"),
    [
        ([(60, 10, True)], 0.6),  # one of them on each GPU
        ([(60, 10, True), (40, 10, True)], 1.0),
        ([(60, 10, True), (50, 10, False)], 0.6),  # what is placed stays
        ([(WHOLE, 4, True), (30, 100, False)], (4 + 6 * 0.9) / 10),
        ([(30, 5, False)], 0.15),  # no more than arrives
    ],
)
def test_where_the_optimum_is_known(tasks: list[tuple[int, int, bool]], share: float) -> None:
    found = bound(sizes(*tasks), gpus=10, gpu_units=WHOLE)
    assert share - 1e-9 <= found <= share + 0.005


@pytest.mark.parametrize("seed", range(10))
def test_it_is_never_below_a_packing(seed: int) -> None:
    """First fit in the order of arrival, which refuses nothing that fits."""
    chance = random.Random(seed)  # noqa: S311 - an order, not a secret
    free, seen, used = [WHOLE] * 20, Sizes(), 0
    for _ in range(120):
        size = chance.choice([10, 20, 30, 47, 65, 81, WHOLE])
        gpu = next((n for n, left in enumerate(free) if left >= size), None)
        seen.add(size, 1, placed=gpu is not None)
        if gpu is not None:
            free[gpu] -= size
            used += size
    assert bound(seen, gpus=20, gpu_units=WHOLE) >= used / (20 * WHOLE) - 1e-9
