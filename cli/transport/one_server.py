"""Requests of a verb that asks and prints, by `http.client`: no event loop, which takes a while to import."""

import http.client
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from cli.errors import UsageError
from cli.transport.client import ANSWER_S, CHUNK_BYTES, CONNECT_S, HEADERS, NO_HEADERS, Answer, Api, NoAnswerError
from cli.transport.connection import Connection
from cli.transport.several_servers import several, shown
from cli.transport.tls import client_context

_REUSED_S: Final = 5.0  # servers close a connection that rests for longer
_UNSAFE_IN_PATHS: Final = "/:@!$&'()*+,;=-._~%"


class BlockingTransport:
    """Requests to one server, one after another. Its coroutines never suspend: see `cli.runner`.

    Raises:
        UsageError: the URL names no host or no valid port, or the key has characters that no header takes.
    """

    def __init__(self, url: str, key: str | None, ca: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} is not a valid URL: {error}") from None
        if not host:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} names no host")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("GPUWARD_API_KEY (--api-key): has characters that no key has")
        secure = parts.scheme == "https"
        usual = http.client.HTTPS_PORT if secure else http.client.HTTP_PORT
        at = usual if port is None else port
        try:
            self._connection = (
                http.client.HTTPSConnection(host, at, context=client_context(ca))
                if secure
                else http.client.HTTPConnection(host, at)
            )
        except http.client.InvalidURL as error:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} is not a valid URL: {error}") from None
        self._prefix = parts.path
        self._headers = {**HEADERS, **({"Authorization": f"Bearer {key}"} if key is not None else {})}
        self._used_at = 0.0
        self._sent = False  # whether the request may have reached the server
        self._socket: socket.socket | None = None  # of the answer that is read

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    async def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """See `Transport`."""
        deadline = time.monotonic() + ANSWER_S
        try:
            response = self._ask(method, target, query, body, deadline, headers)
            return Answer(response.status, _fields(response), self._read(response, deadline))
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswerError(_why(error), sent=self._sent) from error
        finally:
            self._used_at = time.monotonic()

    async def stream(
        self, target: str, query: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer | bytes]:
        """See `Transport`."""
        deadline, response = time.monotonic() + ANSWER_S, None
        try:
            response = self._ask("GET" if body is None else "POST", target, query, body, deadline)
            if response.status >= 300:  # noqa: PLR2004 - only 2xx carries the stream
                yield Answer(response.status, _fields(response), self._read(response, deadline))
                return
            if self._socket is not None:
                self._socket.settimeout(None)
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
            _end(response)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise NoAnswerError(_why(error), sent=self._sent) from error
        finally:
            if response is not None:
                response.close()  # else it keeps the socket open, and an engine at work
            self._socket = None
            self.close()

    def _ask(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        deadline: float,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> http.client.HTTPResponse:
        connection, self._sent = self._connection, False
        if connection.sock is not None and (time.monotonic() - self._used_at > _REUSED_S or _has_news(connection.sock)):
            connection.close()
        if connection.sock is None:
            connection.timeout = CONNECT_S
            connection.connect()
        self._sent = True
        self._socket = connection.sock  # which the connection forgets where the server ends it after the answer
        self._let_take(deadline)
        headers = {**self._headers, **more_headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        path = quote(self._prefix, safe=_UNSAFE_IN_PATHS) + target
        connection.request(method, f"{path}?{urlencode(query)}" if query else path, body, headers)
        return connection.getresponse()

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """The body; the deadline is for all of it."""
        chunks = []
        while not response.isclosed():
            self._let_take(deadline)
            chunks.append(response.read1(CHUNK_BYTES))
            if not chunks[-1]:
                break
        _end(response)
        return b"".join(chunks)

    def _let_take(self, deadline: float) -> None:
        """Sets how long the next read or write may take."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._socket is not None:
            self._socket.settimeout(left)


@contextmanager
def connected(connection: Connection) -> Iterator[Api]:
    """A client for a verb without an event loop. It has not made a request yet."""
    transports = [BlockingTransport(url, connection.key, connection.ca) for url in connection.urls]
    try:
        yield Api(several(transports), shown(connection.urls))
    finally:
        for transport in transports:
            transport.close()


def _has_news(kept: socket.socket) -> bool:
    """Whether the server has closed a connection at rest, or said what was not asked for."""
    return bool(select.select([kept], [], [], 0)[0])


def _fields(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _end(response: http.client.HTTPResponse) -> None:
    """Lets go of an answer that was read, so that the connection takes another request.

    Raises:
        IncompleteRead: its body is shorter than its head said.
    """
    response.close()
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if (reason := getattr(error, "verify_message", "") or getattr(error, "reason", "")) and isinstance(error, OSError):
        return f"TLS: {reason}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower() if error.errno > 0 else str(error.strerror or error)
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut off"
    return str(error) or type(error).__name__
