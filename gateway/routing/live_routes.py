"""Keeps the routing table fresh: reads it on change notifications, every `REFRESH_S`, and before a refusal."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from controller.live.change_fanout import ChangeFanout
from controller.live.endpoints import DATABASE_ERRORS, Database, EndpointReader
from controller.live.proxy_keys import NO_PROXY_KEYS, SecretKeys
from gateway.errors import unavailable
from gateway.routing.routing_table import RoutingTable

log = structlog.get_logger(__name__)

REFRESH_S: Final = 2.0
DEBOUNCE_S: Final = 0.05
READ_LIMIT_S: Final = 5.0
RECHECK_LIMIT_S: Final = 1.0
_HANGS_FOR_S: Final = 1.0  # nothing waits for a database that has just not answered
_RECHECK_PAUSE_S: Final = 0.1
_STOP_LIMIT_S: Final = 5.0
_NO_KEY: Final = "no key here opens the secrets of agents' proxies; set GPUWARD_PROXY_KEY_FILE, see docs/access.md"


class LiveRoutes:
    """The routing table and the task that keeps it fresh, which ends only by a defect."""

    def __init__(
        self,
        database: Database,
        changes: ChangeFanout,
        updated: Callable[[], None] = lambda: None,
        keys: SecretKeys = NO_PROXY_KEYS.keys,
    ) -> None:
        self.table = RoutingTable()
        self._database = database
        self._endpoints = EndpointReader(keys)
        self._closed: frozenset[str] = frozenset()
        self._updated = updated
        self._reading = asyncio.Lock()
        self._reads = 0
        self._last_read = float("-inf")
        self._known = False  # whether the table was ever read
        self._stale = False
        self._hangs_until = float("-inf")
        self.refreshing = asyncio.create_task(self._keep_fresh(changes), name="gateway-routing")

    async def recheck(self, limit_s: float = RECHECK_LIMIT_S) -> None:
        """Reads the table before a request is refused: its client may already have seen the model running.

        Concurrent callers share one read that begins after they called, with at most ten reads a second. Where the
        database has not answered one caller, none of the next second waits for it: its task notices only after
        `READ_LIMIT_S`.

        Raises:
            GatewayError: 503 `unavailable`: the table was never read, or the database does not answer.
        """
        loop, reads_before = asyncio.get_running_loop(), self._reads
        if not self._stale and loop.time() >= self._hangs_until:
            try:
                async with asyncio.timeout(limit_s), self._reading:
                    if self._reads == reads_before:
                        await asyncio.sleep(self._last_read + _RECHECK_PAUSE_S - loop.time())
                        await self._read()
            except TimeoutError:
                self._hangs_until = loop.time() + _HANGS_FOR_S
            except DATABASE_ERRORS:  # the task logs it
                pass
        if not self._known:
            raise unavailable("the database is away, and no model is known yet; try again in a moment")
        if self._stale or loop.time() < self._hangs_until:
            raise unavailable("the database is away, and no replica of the model is known; try again in a moment")

    @property
    def known(self) -> bool:
        """Whether the table was ever read."""
        return self._known

    @property
    def problem(self) -> str:
        """Why requests for known models could not be sent on; empty: they can."""
        if not self._known:
            return "no model is known yet"
        return _NO_KEY if self._endpoints.opens_none else ""

    async def _read(self) -> None:
        self._reads += 1
        self._last_read = asyncio.get_running_loop().time()
        async with self._database.snapshot() as connection:
            serving, endpoints = await self._endpoints.read(connection)
        self.table.update(serving.models, endpoints, serving.stopped)
        self._known = True
        if (closed := self._endpoints.closed) != self._closed:
            self._closed = closed
            if closed:
                log.error(_NO_KEY, workers=len(closed))
        self._hangs_until = float("-inf")
        self._updated()

    async def _keep_fresh(self, changes: ChangeFanout) -> None:
        """Without the database the last table stays in use."""
        with changes.subscribe() as subscription:
            while True:
                try:
                    async with asyncio.timeout(READ_LIMIT_S), self._reading:
                        await self._read()
                    if self._stale:
                        log.info("gateway routing is fresh again")
                    self._stale = False
                except DATABASE_ERRORS as error:
                    if not self._stale:
                        why = str(error) or type(error).__name__
                        log.warning("gateway routing not refreshed, keeping the last one", error=why)
                    self._stale = True
                try:
                    async with asyncio.timeout(REFRESH_S):
                        await subscription.take()
                except TimeoutError:
                    continue
                await asyncio.sleep(DEBOUNCE_S)

    async def stop(self) -> None:
        self.refreshing.cancel()
        await asyncio.wait([self.refreshing], timeout=_STOP_LIMIT_S)
