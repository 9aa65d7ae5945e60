"""Measures placement alone: one pass over a fleet in memory, without a database.

Usage: python bench/placement_pass.py [WORKERS] [ASKS]
       python bench/placement_pass.py --distinct     the cost of distinct asks on 40,000 GPUs, against 1,000 GPUs
"""

import random
import statistics
import sys
import time
from collections.abc import Callable

from controller.domain.placement import Ask, DeviceState, Layout, Placed, PlacementWorker
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place

GPUS = 8
MEMORY_MIB = 81_920
SINGLES = 200
CHANGED = 300
SMALL, LARGE = 125, 5_000  # workers
BLOCKS = 7


def device(worker: int, index: int) -> DeviceState:
    """GPU `index` of a worker; -1 is its host."""
    gpu = index >= 0
    return DeviceState(
        uuid=f"{worker}/{index}", worker_id=str(worker), kind="gpu" if gpu else "host", index=index, model="",
        compute_capability=(9, 0) if gpu else None, memory_mib=MEMORY_MIB if gpu else 2**20,
        cpu_milli=0 if gpu else 64_000, claimed_mib=0, claimed_cpu_milli=0, claims=0, exclusive_claims=0,
        healthy=True, mig_mode=False,
    )  # fmt: skip


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def fleet_of(workers: int) -> tuple[Inventory, list[DeviceState]]:
    devices = [device(w, i) for w in range(workers) for i in range(-1, GPUS)]
    inventory = Inventory()
    inventory.upsert_workers(
        PlacementWorker(str(w), f"w{w:05}", True, True, "linux", "x86_64", "580.1", False, {}) for w in range(workers)
    )
    inventory.upsert_devices(devices)
    return inventory, devices


def distinct(strategy: str) -> None:
    """Prints the cost of a decision on both fleets, with distinct asks. Blocks alternate."""
    chance = random.Random(1)  # noqa: S311 - sizes, not secrets
    sizes = chance.sample(range(5_000, 60_000), SINGLES)
    asks = [Ask(f"i{n}", f"d{n % 20}", (Layout(1, size, False),), strategy=strategy) for n, size in enumerate(sizes)]  # type: ignore[arg-type] # table
    fleets = {workers: fleet_of(workers)[0] for workers in (SMALL, LARGE)}
    took: dict[int, list[float]] = {workers: [] for workers in fleets}
    for inventory in fleets.values():
        place(inventory, asks[:1])  # builds the arrays
        inventory.rollback()
    for _ in range(BLOCKS):
        for workers, inventory in fleets.items():
            inventory.searches.clear()
            took[workers].append(timed(lambda inventory=inventory: place(inventory, asks)) / len(asks))  # type: ignore[misc]
            inventory.rollback()
    small, large = (statistics.median(took[workers]) for workers in (SMALL, LARGE))
    ratio = statistics.median(b / a for a, b in zip(took[SMALL], took[LARGE], strict=True))
    print(
        f"{strategy:20} distinct asks | {SMALL * GPUS} GPUs {small * 1e3:5.2f} ms | {LARGE * GPUS} GPUs"
        f" {large * 1e3:5.2f} ms | ratio {ratio:.2f}, aim at most 2"
    )


def measure(workers: int, count: int, strategy: str, layout: Layout) -> None:
    """Prints the times of: building the arrays, a batch of equal asks, single asks, rollback, update."""
    inventory, devices = fleet_of(workers)
    asks = [Ask(f"i{n}", "d", (layout,), strategy=strategy) for n in range(count)]  # type: ignore[arg-type] # table
    build_s = timed(lambda: inventory.gpus)
    batch_s = timed(lambda: place(inventory, asks))
    rollback_s = timed(inventory.rollback)
    single_s = timed(lambda: [place(inventory, [ask]) for ask in asks[:SINGLES]]) / SINGLES
    update_s = timed(lambda: inventory.upsert_devices(devices[:CHANGED]))
    fitted = sum(isinstance(d, Placed) for d in place(inventory, asks))
    print(
        f"{workers} x {GPUS} GPUs, {strategy:6} {layout.gpus} {'whole' if layout.exclusive else 'shared':6}"
        f" | built {build_s * 1e3:6.1f} ms | {count} together {batch_s * 1e3:6.1f} ms ({fitted} fit)"
        f" | one alone {single_s * 1e3:5.2f} ms | rolled back {rollback_s * 1e3:5.1f} ms"
        f" | {CHANGED} devices updated {update_s * 1e3:4.2f} ms"
    )


if __name__ == "__main__":
    if "--distinct" in sys.argv:
        for name in ("auto", "pack", "spread", "least_fragmentation"):
            distinct(name)
        sys.exit()
    fleet, batch = int(sys.argv[1]) if sys.argv[1:] else 1000, int(sys.argv[2]) if sys.argv[2:] else 4000
    for strategy in ("auto", "pack", "spread"):
        for layout in (Layout(1, 20_000, False), Layout(1, 0, True), Layout(2, 0, True)):
            measure(fleet, batch, strategy, layout)
