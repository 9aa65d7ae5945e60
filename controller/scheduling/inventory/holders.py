"""The inventory as if some of its holders had ended."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from controller.domain.holdings import Holder
from controller.scheduling.inventory.capacity import Inventory


@contextmanager
def without(inventory: Inventory, holders: Iterable[Holder]) -> Iterator[None]:
    """The inventory as if these holders had ended."""
    excluded = tuple(holders)
    for one in excluded:
        inventory.exclude(one.claims)
    try:
        yield
    finally:
        for one in excluded:
            inventory.restore(one.claims)
