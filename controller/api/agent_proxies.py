"""The client session to the agents' proxies, shared by the gateway and the log route."""

from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web

_CONNECT_S: Final = 5.0
_KEPT_S: Final = 15.0  # idle connections; agents end them later
AGENT_PROXIES: Final = web.AppKey("AGENT_PROXIES", aiohttp.ClientSession)


async def agent_proxies_context(app: web.Application) -> AsyncIterator[None]:
    """Opens the session with the app and closes it with the app. It keeps no cookies and decompresses nothing."""
    async with aiohttp.ClientSession(
        # No limit: a request that waits for a free connection would hang in a queue that nothing shows.
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=_KEPT_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        app[AGENT_PROXIES] = session
        yield
