"""The time of a relocation search without a result: 10,000 GPUs, 20,000 holders, in memory.

Usage: python bench/relocation.py [WORKERS]
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Final

from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.admission.consolidate import Movable, consolidate
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from placement_pass import GPUS, fleet_of

HOLES: Final = 12  # fewer than the holders of one worker
AIM_S: Final = 2.0


def filled(workers: int, sizes: Callable[[int], int], *, holes: bool) -> tuple[Inventory, list[Movable]]:
    """A fleet with two holders on each GPU, as placement leaves them; with `holes`, a few have ended."""
    inventory, _ = fleet_of(workers)
    asks = [Ask(f"i{n}", "d", (Layout(1, sizes(n), False),)) for n in range(2 * workers * GPUS)]
    placed = [decision for decision in place(inventory, asks) if isinstance(decision, Placed)]
    by_name = {ask.instance: ask for ask in asks}
    inventory.begin_pass()  # placed instances stay
    for ended in random.Random(1).sample(placed, HOLES if holes else 0):  # noqa: S311 - places, not a secret
        inventory.exclude(ended.claims)
        placed.remove(ended)
    return inventory, [Movable(p.instance, p.workers, p.claims, by_name[p.instance]) for p in placed]


def main() -> None:
    workers = int(sys.argv[1]) if sys.argv[1:] else 1250
    chance = random.Random(1)  # noqa: S311 - sizes, not a secret
    several = [chance.randrange(34_000, 40_000, 10) for _ in range(2 * workers * GPUS)]
    fleets: dict[str, tuple[Callable[[int], int], bool]] = {
        "no replacement fits anywhere": (lambda _: 36_000, False),
        "too few replacements fit": (lambda _: 36_000, True),
        "every holder of another size": (lambda n: several[n], True),
    }
    for name, (sizes, holes) in fleets.items():
        inventory, movable = filled(workers, sizes, holes=holes)
        for layout in (Layout(8, 0, True), Layout(16, 0, True, workers=2)):
            started = time.perf_counter()
            plan = consolidate(inventory, [Ask("large", "l", (layout,))], movable)
            took_s = time.perf_counter() - started
            result = f"{len(plan.relocations)} relocations" if plan.placed else "nothing found"
            print(
                f"{workers * GPUS:,} GPUs, {len(movable):,} holders, {name}: {layout.gpus} whole GPUs, {result}"
                f" in {took_s:.2f} s (aim {AIM_S:g} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
