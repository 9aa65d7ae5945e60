"""The client session to the agents' proxies, shared by the gateway and the log route."""

import socket
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web

from http1.client import BoundedConnector

_CONNECT_S: Final = 5.0
_KEPT_S: Final = 15.0  # idle connections; agents end them later
# A host that is gone acknowledges nothing, and its connections end after a minute. While an engine is merely slow, the
# kernel of its host answers.
_LIVENESS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
)
AGENT_PROXIES: Final = web.AppKey("AGENT_PROXIES", aiohttp.ClientSession)


async def agent_proxies_context(app: web.Application) -> AsyncIterator[None]:
    """Opens the session with the app and closes it with the app. It keeps no cookies and decompresses nothing."""
    async with aiohttp.ClientSession(
        # No limit: a request that waits for a free connection would hang in a queue that nothing shows.
        connector=BoundedConnector(limit=0, limit_per_host=0, keepalive_timeout=_KEPT_S, socket_factory=agent_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        app[AGENT_PROXIES] = session
        yield


def agent_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """A socket that notices within a minute that the other host is gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    for level, name, value in _LIVENESS:
        if (option := getattr(socket, name, None)) is not None:  # some exist on Linux alone
            made.setsockopt(level, option, value)
    made.setblocking(False)
    return made
