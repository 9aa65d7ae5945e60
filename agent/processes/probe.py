"""Probes an engine on its loopback port."""

import asyncio

import aiohttp

from http1.files import is_shortage
from schemas.wire import ProbeOrder

_CONNECT_LIMIT_S = 2.0


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
        except aiohttp.ClientOSError as error:
            return None if is_shortage(error) else False
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False


async def _connects(port: int) -> bool | None:
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
    except OSError as error:  # TimeoutError is one
        return None if is_shortage(error) else False
    return True
