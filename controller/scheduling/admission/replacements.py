"""Where the replacement of a running instance may go: somewhere else, and no worse than where the instance runs."""

from collections.abc import Sequence

import numpy as np

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.inventory.arrays import Bools
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import engine_chain
from controller.scheduling.search.place import find


def replaceable(inventory: Inventory, asks: Sequence[Ask]) -> list[bool]:
    """For each ask, whether any host has enough free for it. A search may still know a reason against each of them."""
    free = -np.sort(-inventory.gpus.free[inventory.groups.gpus], axis=1)
    whole = -np.sort(-inventory.gpus.whole[inventory.groups.gpus], axis=1)
    workers, rows = inventory.workers, inventory.groups.worker
    memory = (workers.memory - workers.memory_claimed)[rows]
    cpu = (workers.cpu - workers.cpu_claimed)[rows]
    known: dict[tuple[object, ...], bool] = {}

    def has(ask: Ask, layout: Layout) -> bool:
        key = layout.gpus // layout.workers, layout.memory_mib, layout.exclusive, ask.host_memory_mib, ask.cpu_milli
        if key not in known:
            each = layout.gpus // layout.workers
            enough: Bools = np.ones(len(rows), dtype=np.bool_)
            if ask.host_memory_mib:
                enough &= memory >= ask.host_memory_mib
            if ask.cpu_milli:
                enough &= cpu >= ask.cpu_milli
            if each > free.shape[1]:
                enough[:] = False
            elif each:
                enough &= (whole if layout.exclusive else free)[:, each - 1] >= layout.memory_mib
            known[key] = bool(enough.any())
        return known[key]

    # GPUs that are named by hand may be distributed unevenly.
    return [
        any(one.gpus or any(has(one, layout) for layout in one.layouts) for one in engine_chain(ask)) for ask in asks
    ]


def find_replacement(inventory: Inventory, ask: Ask, old: Holder) -> Placed | None:
    """The place for the replacement of an instance; none where more of its deployment run than now.

    With `spread` workers count before GPUs, with `pack` neither counts, else GPUs alone.
    """
    placed = find(inventory, ask)
    if placed is None or not ask.keeps_apart:
        return placed
    on_workers, on_gpus = inventory.deployment_on(ask.deployment_uid)

    def crowded(counts: dict[str, int], there: Sequence[str], here: Sequence[str]) -> bool:
        most = max((counts.get(one, 1) for one in here), default=1)
        return any(counts.get(one, 0) + (one not in here) > most for one in there)

    workers = dict(on_workers), placed.workers, tuple(old.workers)
    gpus = dict(on_gpus), [c.device for c in placed.claims], [c.device for c in old.claims]
    if ask.strategy != "spread":
        return None if crowded(*gpus) else placed
    if crowded(*workers):
        return None
    return None if set(placed.workers) <= old.workers and crowded(*gpus) else placed
