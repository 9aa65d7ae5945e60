"""Places asks in order: each takes the best place that is left.

Search results are kept with the inventory, so equal asks share them, however far apart they come (`cached_search.py`).
"""

from collections.abc import Sequence

from controller.domain.placement import Ask, Decision, Unplaced
from controller.scheduling.explain.unplaced import explain_unplaced
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find


def place(inventory: Inventory, asks: Sequence[Ask]) -> list[Decision]:
    """Decides all asks in the order given and reserves each place.

    Starts a pass. Afterwards `inventory.rollback()` takes all decisions back, and `unreserve` a single decision.

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
