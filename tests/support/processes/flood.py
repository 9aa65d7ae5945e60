"""Connections that say little and never go away: opened again whenever the server closes them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BATCH = 50


class _Held(asyncio.Protocol):
    """Ignores what it reads, or reads nothing."""

    def __init__(self) -> None:
        self.lost = False

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost = True


class Flood:
    """`count` connections to one port, each with the same first bytes, and with `drip` each second after them."""

    def __init__(self, port: int, count: int, first: bytes, *, drip: bytes = b"", reads: bool = True) -> None:
        self._port = port
        self._count = count
        self._first = first
        self._drip = drip
        self._reads = reads
        self._held: list[tuple[asyncio.Transport, _Held]] = []
        self.opened = 0

    @asynccontextmanager
    async def held(self) -> AsyncIterator["Flood"]:
        """Opens all of them, and holds as many until the context ends."""
        await self._open()
        task = asyncio.create_task(self._hold())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for transport, _ in self._held:
                transport.abort()
            await asyncio.sleep(0)

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self._drip:
                for transport, held in self._held:
                    if not held.lost:
                        transport.write(self._drip)
            await self._open()

    async def _open(self) -> None:
        self._held = [(transport, held) for transport, held in self._held if not held.lost]
        while (missing := self._count - len(self._held)) > 0:
            await asyncio.gather(*(self._connect() for _ in range(min(missing, _BATCH))))

    async def _connect(self) -> None:
        try:
            made = await asyncio.get_running_loop().create_connection(_Held, "127.0.0.1", self._port)
        except OSError:
            await asyncio.sleep(0.05)
            return
        self._held.append(made)
        transport, _ = made
        if not self._reads:
            transport.pause_reading()
        transport.write(self._first)
        self.opened += 1
