"""Answers of controllers, read within a bound, and why a controller does not serve a connection."""

import asyncio
from typing import Final

import aiohttp

from agent.decide.unreachable import Unreachable, needs_tls, unreachable

_ALIVE_PATH: Final = "/healthz"
_LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 65_536
_BAD_REQUEST: Final = 400


async def read_at_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, cut to `most_bytes`. Raises aiohttp.ClientError or TimeoutError."""
    try:
        return await response.content.readexactly(most_bytes)
    except asyncio.IncompleteReadError as ended:
        return ended.partial


def why_unreachable(url: str, error: Exception) -> Unreachable:
    """The cause of a failed connection, which aiohttp wraps."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return unreachable(url, error)


async def why_answered(session: aiohttp.ClientSession, url: str, status: int) -> str:
    """Why a controller answers an agent's connection with this status."""
    # A port that speaks TLS answers 400 to each plain request, also to the simplest.
    if status == _BAD_REQUEST and url.startswith("http:") and await _refuses_all(session, url):
        return str(needs_tls(url))
    return f"{url} answers {status}"


async def _refuses_all(session: aiohttp.ClientSession, url: str) -> bool:
    limit = aiohttp.ClientTimeout(total=_LIMIT_S)
    try:
        async with session.get(url + _ALIVE_PATH, timeout=limit, allow_redirects=False) as answer:
            await read_at_most(answer, _MOST_BYTES)
            return answer.status == _BAD_REQUEST
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
