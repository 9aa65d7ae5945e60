"""The inventory that dry runs share: kept between them, so that each reads only what was written since the one before.

It needs neither the leader nor its cache, so it is the same on every controller. Each dry run gets a copy that it may
change. Refreshes go one after the other, in the order of their snapshots: a row never goes back to what it was.
After a failover it does, where the last commits are lost, so nothing is kept from another term or timeline.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from controller.leader.placement_passes import InventoryCache
from controller.store.core.database import Database
from controller.store.placement.pass_reads import read_changes
from controller.store.placement.plan_reads import History, read_history, read_horizon

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

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._cache: InventoryCache | None = None
        self._of: History | None = None
        self._idle: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[Moment]:
        """A REPEATABLE READ transaction, and the inventory as it sees it."""
        async with AsyncExitStack() as stack:
            async with self._lock:  # before the snapshot is taken; a request's deadline ends the wait
                connection = await stack.enter_async_context(self._database.snapshot())
                seen = await self._refreshed(connection)
            yield Moment(connection, seen)

    def let_go(self) -> None:
        """Frees its memory, as a timer does where it is idle: the next moment reads everything anew."""
        self._cache = None
        if self._idle is not None:
            self._idle.cancel()

    async def _refreshed(self, connection: "PoolConnectionProxy[Any]") -> InventoryCache:
        cache, history = self._cache, await read_history(connection)
        if cache is None or history != self._of or await read_horizon(connection) < int(cache.horizon):
            cache = InventoryCache()
        changes = await read_changes(connection, cache.horizon)  # a client that leaves here has changed nothing
        self.let_go()  # until all is taken over: half of it would be wrong
        cache.take(changes)
        copying = asyncio.ensure_future(asyncio.to_thread(cache.copy))
        try:
            return await asyncio.shield(copying)
        finally:
            await asyncio.wait({copying})  # where a client leaves too: the cache must not change under its copy
            self._cache, self._of = cache, history
            self._idle = asyncio.get_running_loop().call_later(KEPT_S, self.let_go)


KEPT_INVENTORY: Final = web.AppKey("KEPT_INVENTORY", KeptInventory)
