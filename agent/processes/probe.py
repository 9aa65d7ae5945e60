"""Probes an engine on its loopback port."""

import asyncio
import errno
from typing import Final

import aiohttp

from schemas.wire import ProbeOrder

_CONNECT_LIMIT_S = 2.0
# This agent or host has run out of something: it says nothing about the engine.
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class Prober:
    """Probes all engines. Each probe opens a new connection: a kept one would hide a dead listener."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def probe(self, probe: ProbeOrder | None, port: int) -> bool | None:
        """Whether an HTTP GET answers 2xx; without `probe`, whether the port accepts a connection. None: unknown."""
        if probe is None:
            return await _connects(port)
        try:
            async with self._session.get(
                f"http://127.0.0.1:{port}{probe.path}",
                timeout=aiohttp.ClientTimeout(total=probe.timeout_s),
                allow_redirects=False,
                headers={"Connection": "close"},
            ) as response:
                return 200 <= response.status < 300  # noqa: PLR2004 - 2xx
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return _of(error)


async def _connects(port: int) -> bool | None:
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        return _of(error)
    return True


def _of(error: Exception) -> bool | None:
    return None if isinstance(error, OSError) and error.errno in _OUR_OWN else False
