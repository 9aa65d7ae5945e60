"""Requests to one server by `http.client`, the only HTTP client of which the import is quick: 0.02 s of CPU."""

import http.client
import os
import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from cli.errors import CliError, UsageError
from cli.transport.answers import NO_HEADERS, Answer, NoAnswerError
from http1.tls.pinned import trusting
from schemas.version import __version__

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
CHUNK_BYTES: Final = 64 * 1024
_HEADERS: Final = {"User-Agent": f"gpuward/{__version__}", "Accept": "application/json"}
_REUSED_S: Final = 5.0  # servers close a connection that rests for longer
_UNSAFE_IN_PATHS: Final = "/:@!$&'()*+,;=-._~%"
_FAILURES: Final = (OSError, UnicodeError, http.client.HTTPException)


class Server:
    """Requests to one server, one after another; a stream has a connection of its own.

    Another thread may close it: a request that waits then fails.

    Raises:
        UsageError: the URL names no host or no valid port, or the key has characters that no header takes.
    """

    def __init__(self, url: str, key: str | None, ca: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} is not a valid URL: {error}") from None
        if not self._host:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} names no host")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("GPUWARD_API_KEY (--api-key): has characters that no key has")
        self._tls = client_context(ca) if parts.scheme == "https" else None
        self._path = quote(parts.path, safe=_UNSAFE_IN_PATHS)
        self._headers = {**_HEADERS, **({"Authorization": f"Bearer {key}"} if key is not None else {})}
        try:
            self._connection = self._new_connection()
        except http.client.InvalidURL as error:
            raise UsageError(f"GPUWARD_URL (--url): {url!r} is not a valid URL: {error}") from None
        self._used_at = 0.0
        self._closed = False

    def close(self) -> None:
        """Refuses requests from now on, and ends the one that waits."""
        self._closed = True
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        until: float = float("inf"),
    ) -> Answer:
        """One request for a path, and its answer. Redirects are not followed.

        `until`: `time.monotonic()` at which the answer must have come, if that is before `ANSWER_S`.

        Raises:
            NoAnswerError: no answer came.
        """
        connection = self._connection
        asking = _Asking(connection, min(until, time.monotonic() + ANSWER_S))
        rests_for_s = time.monotonic() - self._used_at
        if connection.sock is not None and (rests_for_s > _REUSED_S or _has_news(connection.sock)):
            connection.close()
        try:
            response = self._send(asking, method, target, query, body, headers)
            return Answer(response.status, _fields(response), asking.read(response))
        except _FAILURES as error:
            connection.close()
            raise NoAnswerError(_why(error), sent=asking.sent) from error
        finally:
            self._used_at = time.monotonic()

    def stream(
        self, target: str, query: Mapping[str, str], body: bytes | None = None, *, silence_s: float | None = None
    ) -> Iterator[Answer | bytes]:
        """A refusal; or the chunks of a body as they arrive. With a body the request is a POST.

        `silence_s`: the longest time between two chunks; None: any.

        Raises:
            NoAnswerError: no answer came, or the stream broke off.
        """
        connection, response = self._new_connection(), None
        asking = _Asking(connection, time.monotonic() + ANSWER_S)
        try:
            response = self._send(asking, "GET" if body is None else "POST", target, query, body, NO_HEADERS)
            if response.status >= 300:  # noqa: PLR2004 - only 2xx carries the stream
                yield Answer(response.status, _fields(response), asking.read(response))
                return
            asking.wait_for(silence_s)
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
            _end(response)
        except _FAILURES as error:
            raise NoAnswerError(_why(error), sent=asking.sent) from error
        finally:
            if response is not None:
                response.close()  # else it keeps the socket open, and an engine at work
            connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port or http.client.HTTPS_PORT, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port or http.client.HTTP_PORT)

    def _send(
        self,
        asking: "_Asking",
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        if self._closed:
            raise CliError("the client was closed")
        asking.connect()
        content = {} if body is None else {"Content-Type": "application/json"}
        path = f"{self._path}{target}?{urlencode(query)}" if query else f"{self._path}{target}"
        asking.connection.request(method, path, body, {**self._headers, **headers, **content})
        return asking.connection.getresponse()


class _Asking:
    """A request: its connection, and the deadline of the complete answer.

    Attributes:
        sent: whether a part of it may have reached the server.
    """

    def __init__(self, connection: http.client.HTTPConnection, until: float) -> None:
        self.connection = connection
        self.sent = False
        self._until = until
        self._socket: socket.socket | None = None  # which the connection forgets where the server ends it

    def connect(self) -> None:
        if self.connection.sock is None:
            self.connection.timeout = min(CONNECT_S, self._left())
            self.connection.connect()
        self.sent, self._socket = True, self.connection.sock
        self.wait_for(self._left())

    def wait_for(self, seconds: float | None) -> None:
        """Sets how long one read or write may take."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """The body."""
        chunks = []
        while not response.isclosed():
            self.wait_for(self._left())
            chunks.append(response.read1(CHUNK_BYTES))
            if not chunks[-1]:
                break
        _end(response)
        return b"".join(chunks)

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def client_context(authority: Path | None) -> ssl.SSLContext:
    """Verifies against the authority in a file; None: against those of the system.

    Raises:
        UsageError: the file cannot be used.
    """
    try:
        return trusting(authority)
    except OSError as error:  # SSLError is one
        own = not isinstance(error, ssl.SSLError) and error.strerror
        why = own or "no certificate in PEM is there"
        raise UsageError(f"GPUWARD_CA: {authority} cannot be used: {why}") from error


def _has_news(kept: socket.socket) -> bool:
    """Whether the server has closed a connection at rest, or has sent what was not requested."""
    return bool(select.select([kept], [], [], 0)[0])


def _fields(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _end(response: http.client.HTTPResponse) -> None:
    """Releases an answer that was read, so that the connection takes another request.

    Raises:
        IncompleteRead: its body is shorter than its head stated.
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
