"""The inventory as the ledger has it: read whole once, then only what changed."""

from typing import Any

from controller.domain.holdings import Holdings
from controller.scheduling.inventory.capacity import Inventory
from controller.store.placement.inventory import FROM_THE_START, read_changes


class InventoryCache:
    """An `Inventory` and its `Holdings`, kept current by reading changes. For one reader at a time."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.holdings = Holdings()
        self._horizon = FROM_THE_START

    async def refresh(self, connection: Any) -> None:
        """Takes over what changed. The connection must be in one REPEATABLE READ transaction."""
        changes = await read_changes(connection, self._horizon)
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
        self._horizon = changes.horizon


async def read_inventory(connection: Any) -> InventoryCache:
    """A fresh inventory of this moment, for a dry run. The connection must be in one REPEATABLE READ transaction."""
    cache = InventoryCache()
    await cache.refresh(connection)
    return cache
