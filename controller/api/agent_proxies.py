"""The client session to the agents' proxies, shared by the gateway and the log route."""

from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web

_CONNECT_S: Final = 5.0
_SILENCE_S: Final = 600.0  # a model may think long before its first token
_CONNECTIONS: Final = 4096
_PER_WORKER: Final = 1024
AGENT_PROXIES: Final = web.AppKey("AGENT_PROXIES", aiohttp.ClientSession)


async def agent_proxies_context(app: web.Application) -> AsyncIterator[None]:
    """Opens the session with the app and closes it with the app. It keeps no cookies and decompresses nothing."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_CONNECTIONS, limit_per_host=_PER_WORKER),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        app[AGENT_PROXIES] = session
        yield
