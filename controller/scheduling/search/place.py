"""Asks in, decisions out: each ask in turn takes the best place that is left.

What a search found out is kept with the inventory, so equal asks share it, however far apart they come (`search.py`).
"""

from collections.abc import Sequence

from controller.domain.placement import Ask, Decision, Layout, Placed, PlannedClaim, Unplaced
from controller.scheduling.explain.explain import explain_unplaced
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.search.candidates import Choice
from controller.scheduling.search.search import search_for


def place(inventory: Inventory, asks: Sequence[Ask]) -> list[Decision]:
    """Decides every ask in the order given, reserving as it goes.

    Begins a pass: `inventory.rollback()` afterwards takes everything back, `unreserve` a single decision.

    Returns:
        One decision per ask, in the same order.
    """
    inventory.begin_pass()
    return [place_one(inventory, ask) for ask in asks]


def place_one(inventory: Inventory, ask: Ask) -> Decision:
    """Decides one ask by its best engine that fits anywhere, within the pass that has begun."""
    placed = find(inventory, ask)
    if placed is None:
        return Unplaced(ask.instance, explain_unplaced(inventory, ask))
    inventory.reserve(placed, ask.deployment_uid)
    return placed


def find(inventory: Inventory, ask: Ask) -> Placed | None:
    """The place for an ask by its best engine that fits anywhere; reserves nothing."""
    by: Ask | None = ask
    while by is not None:
        found = search_for(inventory, by).best(by.avoid_workers)
        if found is not None:
            return _claims(inventory, by, *found)
        by = by.otherwise
    return None


def _claims(inventory: Inventory, ask: Ask, layout: Layout, choice: Choice) -> Placed:
    """For each rank the claims on the GPUs, by index, and last the one on the host."""
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
