"""The way to the agents' proxies: one client session for logs and models, and the routing table kept fresh."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import structlog
from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.endpoints import read_endpoints
from controller.api.hints import Hints
from controller.api.routing import RoutingTable
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database

log = structlog.get_logger(__name__)

REFRESH_S: Final = 2.0
DEBOUNCE_S: Final = 0.05
READ_LIMIT_S: Final = 10.0
_LOOK_LIMIT_S: Final = 3.0
_LOOK_PAUSE_S: Final = 0.1
_CONNECT_S: Final = 5.0
_SILENCE_S: Final = 600.0  # a model may think long before its first token
_CONNECTIONS: Final = 4096
_PER_WORKER: Final = 1024


class Upstream:
    """What the gateway and the log route share.

    Attributes:
        session: keeps connections to the proxies; knows no cookies and unpacks nothing.
        table: who serves what.
        refreshing: the task that keeps the table fresh; ends only by a defect, which the gateway then tells.
    """

    def __init__(self, session: aiohttp.ClientSession, database: Database, hints: Hints) -> None:
        self.session = session
        self.table = RoutingTable()
        self._database = database
        self._reading = asyncio.Lock()
        self._reads = 0
        self._last_read = float("-inf")
        self.refreshing = asyncio.create_task(self._keep_fresh(hints), name="gateway-routing")

    async def look_again(self) -> None:
        """Reads the table anew, before a request is refused: whoever saw that his model runs is not told otherwise.

        Those who ask together share one read that begins after they asked, and there are no more than ten a second.
        Where the database does not answer, the table stays as it is.
        """
        asked = self._reads
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S), self._reading:
                if self._reads == asked:
                    await asyncio.sleep(self._last_read + _LOOK_PAUSE_S - asyncio.get_running_loop().time())
                    await self._read()
        except DATABASE_ERRORS as error:
            log.info("gateway routing could not be read anew", error=str(error) or type(error).__name__)

    async def _read(self) -> None:
        self._reads += 1
        self._last_read = asyncio.get_running_loop().time()
        async with self._database.snapshot() as connection:
            names, endpoints = await read_endpoints(connection)
        self.table.update(names, endpoints)

    async def _keep_fresh(self, hints: Hints) -> None:
        """Reads the table on hints and every `REFRESH_S`; without the database the last one goes on serving."""
        trouble = False
        with hints.subscribe() as subscription:
            while True:
                try:
                    async with asyncio.timeout(READ_LIMIT_S), self._reading:
                        await self._read()
                    if trouble:
                        log.info("gateway routing is fresh again")
                    trouble = False
                except DATABASE_ERRORS as error:
                    if not trouble:
                        log.warning("gateway routing cannot be read; the last one goes on serving", error=str(error))
                    trouble = True
                try:
                    async with asyncio.timeout(REFRESH_S):
                        await subscription.take()
                except TimeoutError:
                    continue
                await asyncio.sleep(DEBOUNCE_S)


UPSTREAM: Final = web.AppKey("UPSTREAM", Upstream)


async def upstream_context(app: web.Application) -> AsyncIterator[None]:
    """Opens it with the app and closes it with the app."""
    context = app[CONTEXT]
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS, limit_per_host=_PER_WORKER),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
    async with session:
        upstream = app[UPSTREAM] = Upstream(session, context.database, context.hints)
        try:
            yield
        finally:
            upstream.refreshing.cancel()
            await asyncio.wait([upstream.refreshing], timeout=_CONNECT_S)
