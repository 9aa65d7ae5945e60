"""The inventory that dry runs share: kept between them, so that each reads only later changes.

It needs neither the leader nor its cache, so it is the same on every controller. Each dry run gets a copy that it may
change. Refreshes run one after the other, in the order of their snapshots, so that rows never become older. A failover
that loses the last commits makes rows older, so nothing is kept from another term or timeline.
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

KEPT_S: Final = 600.0  # after the last dry run; later, reading the changes costs as much as reading everything


@dataclass(frozen=True, slots=True)
class InventorySnapshot:
    """A snapshot of the database: a connection that reads it, and its inventory, which the dry run may change."""

    connection: "PoolConnectionProxy[Any]"
    cache: InventoryCache


class KeptInventory:
    """The shared inventory of one controller."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._cache: InventoryCache | None = None
        self._of: History | None = None
        self._idle: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[InventorySnapshot]:
        """A REPEATABLE READ transaction, and its inventory."""
        async with AsyncExitStack() as stack:
            async with self._lock:  # before the snapshot is taken; a request's deadline ends the wait
                connection = await stack.enter_async_context(self._database.snapshot())
                cache = await self._refreshed(connection)
            yield InventorySnapshot(connection, cache)

    def clear(self) -> None:
        """Frees the memory, also by a timer when idle; the next snapshot reads everything."""
        self._cache = None
        if self._idle is not None:
            self._idle.cancel()

    async def _refreshed(self, connection: "PoolConnectionProxy[Any]") -> InventoryCache:
        cache, history = self._cache, await read_history(connection)
        if cache is None or history != self._of or await read_horizon(connection) < int(cache.horizon):
            cache = InventoryCache()
        changes = await read_changes(connection, cache.horizon)  # a client that leaves here has changed nothing
        self.clear()  # until all changes are applied, because a part of them would be wrong
        cache.take(changes)
        copying = asyncio.ensure_future(asyncio.to_thread(cache.copy))
        try:
            return await asyncio.shield(copying)
        finally:
            await asyncio.wait({copying})  # also after a client has left, as the cache must not change during the copy
            self._cache, self._of = cache, history
            self._idle = asyncio.get_running_loop().call_later(KEPT_S, self.clear)


KEPT_INVENTORY: Final = web.AppKey("KEPT_INVENTORY", KeptInventory)
