"""How long a relocation search takes that finds nothing: 10,000 GPUs, 20,000 holders, in memory.

Usage: python bench/relocation.py [WORKERS]
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Final

from controller.domain.placement import Ask, DeviceState, Layout, Placed, WorkerFacts
from controller.scheduling.admission.consolidate import Movable, consolidate
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place

GPUS: Final = 8
MEMORY_MIB: Final = 81_920
HOLES: Final = 12  # fewer than the holders of one worker
AIM_S: Final = 2.0


def device(worker: int, index: int) -> DeviceState:
    """GPU `index` of a worker; -1 is its host."""
    gpu = index >= 0
    return DeviceState(
        uuid=f"{worker}/{index}", worker_id=str(worker), kind="gpu" if gpu else "host", index=index, model="",
        compute_capability=(9, 0) if gpu else None, memory_mib=MEMORY_MIB if gpu else 2**20,
        cpu_milli=0 if gpu else 64_000, claimed_mib=0, claimed_cpu_milli=0, claims=0, exclusive_claims=0,
        healthy=True, mig_mode=False,
    )  # fmt: skip


def filled(workers: int, sizes: Callable[[int], int], *, holes: bool) -> tuple[Inventory, list[Movable]]:
    """A fleet with two holders on each GPU, as placement leaves them; with `holes`, a few have ended since."""
    inventory = Inventory()
    inventory.upsert_workers(
        WorkerFacts(str(w), f"w{w:05}", True, True, "linux", "x86_64", "580.1", False, {}) for w in range(workers)
    )
    inventory.upsert_devices(device(w, i) for w in range(workers) for i in range(-1, GPUS))
    asks = [Ask(f"i{n}", "d", (Layout(1, sizes(n), False),)) for n in range(2 * workers * GPUS)]
    placed = [one for one in place(inventory, asks) if isinstance(one, Placed)]
    by_name = {ask.instance: ask for ask in asks}
    inventory.begin_pass()  # what is placed stays
    for one in random.Random(1).sample(placed, HOLES if holes else 0):  # noqa: S311 - places, not a secret
        inventory.exclude(one.claims)
        placed.remove(one)
    return inventory, [Movable(one.instance, one.workers, one.claims, by_name[one.instance]) for one in placed]


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
            begun = time.perf_counter()
            plan = consolidate(inventory, [Ask("large", "l", (layout,))], movable)
            took_s = time.perf_counter() - begun
            found = f"{len(plan.relocations)} relocations" if plan.placed else "nothing found"
            print(
                f"{workers * GPUS:,} GPUs, {len(movable):,} holders, {name}: {layout.gpus} whole GPUs, {found}"
                f" in {took_s:.2f} s (aim {AIM_S:g} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
