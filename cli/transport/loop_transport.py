"""Requests from within an event loop, for what waits or follows: aiohttp."""

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from cli.transport.client import ANSWER_S, CHUNK_BYTES, CONNECT_S, HEADERS, NO_HEADERS, Answer, Api, NoAnswerError
from cli.transport.connection import Connection
from cli.transport.several_servers import several, shown
from cli.transport.tls import client_context

_STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
_TIMEOUT: Final = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)


class LoopTransport:
    """Requests to one server. `session` is open; the caller closes it. `tls`: what is accepted; None: no TLS."""

    def __init__(self, session: aiohttp.ClientSession, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._session = session
        self._url = url
        self._tls = True if tls is None else tls

    async def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """See `Transport`."""
        sent = {**headers, **({"Content-Type": "application/json"} if body is not None else {})}
        try:
            async with self._session.request(
                method, self._url + target, params=query, data=body, headers=sent, allow_redirects=False, ssl=self._tls
            ) as response:
                return await _answer(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswerError(_why(error), sent=_was_sent(error)) from error

    async def stream(
        self, target: str, query: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer | bytes]:
        """See `Transport`."""
        method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": "application/json"})
        try:
            async with self._session.request(
                method,
                self._url + target,
                params=query,
                data=body,
                headers=headers,
                timeout=_STREAM_TIMEOUT,
                allow_redirects=False,
                ssl=self._tls,
            ) as response:
                if response.status >= 300:  # noqa: PLR2004 - only 2xx carries the stream
                    yield await _answer(response)
                    return
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswerError(_why(error), sent=_was_sent(error)) from error


@asynccontextmanager
async def connect(connection: Connection) -> AsyncIterator[Api]:
    """An open client for an event loop. It has not made a request yet."""
    headers = dict(HEADERS)
    if connection.key is not None:
        headers["Authorization"] = f"Bearer {connection.key}"
    async with aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session:
        secure = any(url.startswith("https:") for url in connection.urls)
        tls = client_context(connection.ca) if secure else None
        yield Api(several([LoopTransport(session, url, tls) for url in connection.urls]), shown(connection.urls))


def _was_sent(error: Exception) -> bool:
    """Whether the request may have reached the server."""
    return not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


async def _answer(response: aiohttp.ClientResponse) -> Answer:
    fields = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, fields, await response.read())


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS: {getattr(error.os_error, 'reason', '') or error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno is not None:
        return os.strerror(error.os_error.errno).lower() if error.os_error.errno > 0 else str(error.os_error)
    return str(error) or type(error).__name__
