"""Places asks in order: each takes the best place that is left.

Search results are kept with the inventory, so equal asks share them, however far apart they come (`cached_search.py`).
"""

from collections.abc import Sequence

from controller.domain.placement import Ask, Decision, Layout, Placed, PlannedClaim, Unplaced
from controller.scheduling.explain.unplaced import explain_unplaced
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import best_place, engine_chain
from controller.scheduling.search.candidates import Choice


def place(inventory: Inventory, asks: Sequence[Ask]) -> list[Decision]:
    """Decides all asks in the order given and reserves each place.

    Begins a pass. Afterwards `inventory.rollback()` takes everything back, and `unreserve` a single decision.

    Returns:
        One decision per ask, in the same order.
    """
    inventory.begin_pass()
    return [place_one(inventory, ask) for ask in asks]


def place_one(inventory: Inventory, ask: Ask) -> Decision:
    """Decides one ask within the current pass, by the best engine that fits anywhere."""
    placed = find(inventory, ask)
    if placed is None:
        return Unplaced(ask.instance, explain_unplaced(inventory, ask))
    inventory.reserve(placed, ask.deployment_uid)
    return placed


def find(inventory: Inventory, ask: Ask) -> Placed | None:
    """The place for an ask, by the best engine that fits anywhere. Reserves nothing."""
    for by in engine_chain(ask):
        found = best_place(inventory, by)
        if found is not None:
            return _placed(inventory, by, *found)
    return None


def _placed(inventory: Inventory, ask: Ask, layout: Layout, choice: Choice) -> Placed:
    """The claims of each rank: on its GPUs by index, then on its host."""
    workers, gpus = inventory.workers, inventory.gpus
    claims: list[PlannedClaim] = []
    for rank, (worker, rows) in enumerate(zip(choice.workers, choice.gpus, strict=True)):
        claims += [
            PlannedClaim(
                device=gpus.uuid[row],
                memory_mib=int(gpus.total[row]) if layout.exclusive else layout.memory_mib,
                cpu_milli=0,
                exclusive=layout.exclusive,
                position=position,
                rank=rank,
            )
            for position, row in enumerate(rows.tolist())
        ]
        host = workers.host_uuid[worker]
        claims.append(PlannedClaim(host, ask.host_memory_mib, ask.cpu_milli, False, len(rows), rank))
    ids = tuple(workers.facts[worker].id for worker in choice.workers)
    return Placed(ask.instance, ids, tuple(claims), layout, ask.engine)
