"""The inventory as the ledger has it: read whole once, then only what changed."""

from typing import Any, Self

from controller.domain.holdings import Holdings
from controller.scheduling.inventory.capacity import Inventory
from controller.store.placement.inventory import FROM_THE_START, InventoryChanges, read_changes


class InventoryCache:
    """An `Inventory` and its `Holdings`, kept current by reading changes. For one reader at a time."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.holdings = Holdings()
        self.horizon = FROM_THE_START  # what older transactions wrote is known

    def copy(self) -> Self:
        """The same, for a reader that changes it. Not within a pass."""
        twin = type(self)()
        twin.inventory, twin.holdings, twin.horizon = self.inventory.copy(), self.holdings.copy(), self.horizon
        return twin

    async def refresh(self, connection: Any) -> None:
        """Takes over what changed. The connection must be in one REPEATABLE READ transaction."""
        self.take(await read_changes(connection, self.horizon))

    def take(self, changes: InventoryChanges) -> None:
        """Takes over what was read since the horizon."""
        if changes.device_uuids:
            for instance, holding in self.holdings.replace(changes.device_uuids, changes.claims):
                if holding is None:
                    self.inventory.remove_load([instance])
                else:
                    self.inventory.upsert_load([holding.load(instance)])
        self.inventory.upsert_workers(changes.workers)
        self.inventory.remove_workers(changes.deleted_workers)
        self.inventory.upsert_devices(changes.devices)
        self.inventory.remove_devices(changes.orphaned_devices)
        self.horizon = changes.horizon
