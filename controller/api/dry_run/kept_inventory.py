"""The inventory that dry runs share: kept between them, so that each reads only what was written since the one before.

It needs neither the leader nor its cache, so it is the same on every controller. Each dry run gets a copy that it may
change. Refreshes go one after the other, in the order of their snapshots: a row never goes back to what it was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from controller.leader.inventory_cache import InventoryCache
from controller.store.core.database import Database
from controller.store.placement.inventory import read_changes
from controller.store.placement.plan_reads import read_horizon

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

KEPT_S: Final = 600.0  # after the last dry run; what changes in a longer time is hardly less than everything


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of the database: a connection that reads it, and its inventory, which the dry run may change."""

    connection: "PoolConnectionProxy[Any]"
    seen: InventoryCache


class KeptInventory:
    """Lives as long as the API."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = asyncio.Lock()
        self._cache: InventoryCache | None = None
        self._used_at = 0.0

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[Moment]:
        """A REPEATABLE READ transaction, and the inventory as it sees it."""
        async with AsyncExitStack() as stack:
            async with self._lock:  # before the snapshot is taken; a request's deadline ends the wait
                connection = await stack.enter_async_context(self._database.snapshot())
                seen = await self._refreshed(connection)
            yield Moment(connection, seen)

    def forget(self) -> None:
        """Reads everything anew at the next moment, as where rows were taken away by hand."""
        self._cache = None

    async def _refreshed(self, connection: "PoolConnectionProxy[Any]") -> InventoryCache:
        cache = self._cache
        restored = cache is not None and await read_horizon(connection) < int(cache.horizon)
        if cache is None or restored or self._clock() - self._used_at > KEPT_S:
            cache = InventoryCache()
        changes = await read_changes(connection, cache.horizon)  # a client that leaves here has changed nothing
        self._cache = None  # until all is taken over: half of it would be wrong
        cache.take(changes)
        self._cache, self._used_at = cache, self._clock()
        return cache.copy()


KEPT_INVENTORY: Final = web.AppKey("KEPT_INVENTORY", KeptInventory)
