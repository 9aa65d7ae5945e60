"""Requests to the controllers of one database, by `http.client`: its import takes 0.02 s of CPU, and others' more."""

import http.client
import os
import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from cli.errors import CliError, UsageError
from cli.transport.connection import Connection
from schemas.version import __version__

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
CHUNK_BYTES: Final = 64 * 1024
_HEADERS: Final = {"User-Agent": f"gpuward/{__version__}", "Accept": "application/json"}
_REUSED_S: Final = 5.0  # servers close a connection that is idle for longer
_UNSAFE_IN_PATHS: Final = "/:@!$&'()*+,;=-._~%"
_FAILURES: Final = (OSError, UnicodeError, http.client.HTTPException)
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT"})
_AWAY: Final = frozenset({502, 503, 504})  # of a gateway or a proxy whose controller does not answer


class Request(NamedTuple):
    """`target`: path and query. `headers`: beyond those that each request has."""

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = {}

    @property
    def repeatable(self) -> bool:
        """False for a write that would be done twice if the first answer was lost."""
        return self.method in _REPEATABLE and "If-Match" not in self.headers


class Answer(NamedTuple):
    """An answer of the server. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class NoAnswerError(Exception):
    """The server cannot be reached, or did not answer in time. `sent`: a part of the request may have reached it."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class Servers:
    """Several controllers: a request goes to the next one where the present one does not answer, and stays there."""

    def __init__(self, servers: "Sequence[Server]") -> None:
        self._servers = tuple(servers)
        self._at = 0

    @classmethod
    def of(cls, connection: Connection) -> "Servers":
        """Raises `UsageError` as `Server`."""
        return cls([Server(url, connection.key, connection.ca) for url in connection.urls])

    def for_thread(self) -> "Servers":
        """The same servers from the present one on, for a thread that makes only streams: each has its connection."""
        return Servers((*self._servers[self._at :], *self._servers[: self._at]))

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def exchange(self, request: Request, *, until: float = float("inf")) -> Answer:
        """See `Server.exchange`."""
        for left in reversed(range(len(self._servers))):
            try:
                answer = self._servers[self._at].exchange(request, until=until)
            except NoAnswerError as error:
                self._move_on()
                if not left or (error.sent and not request.repeatable):
                    raise
            else:
                if not left or answer.status not in _AWAY or not request.repeatable:
                    return answer
                self._move_on()
        raise AssertionError("the last server returns or raises")

    def stream(self, request: Request, *, silence_s: float | None = None) -> Iterator[Answer | bytes]:
        """See `Server.stream`. After its first part the stream ends with its controller."""
        for left in reversed(range(len(self._servers))):
            started = False
            try:
                for part in self._servers[self._at].stream(request, silence_s=silence_s):
                    if left and request.repeatable and isinstance(part, Answer) and part.status in _AWAY:
                        break
                    started = True
                    yield part
                else:
                    return
            except NoAnswerError as error:
                self._move_on()
                if started or not left or (error.sent and not request.repeatable):
                    raise
            else:
                self._move_on()

    def _move_on(self) -> None:
        self._at = (self._at + 1) % len(self._servers)


class Server:
    """One controller. Its requests follow one another on one connection; each stream has its own.

    Another thread may close it: a request in progress then fails.

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
        """Refuses requests from now on, and ends the one in progress."""
        self._closed = True
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def exchange(self, request: Request, *, until: float = float("inf")) -> Answer:
        """The answer to one request. Redirects are not followed.

        `until`: `time.monotonic()` at which the answer must have come, if that is before `ANSWER_S`.

        Raises:
            NoAnswerError: no answer came.
        """
        connection = self._connection
        call = _Call(connection, min(until, time.monotonic() + ANSWER_S))
        idle_s = time.monotonic() - self._used_at
        if connection.sock is not None and (idle_s > _REUSED_S or _has_data(connection.sock)):
            connection.close()
        try:
            response = self._send(call, request)
            return Answer(response.status, _fields(response), call.read(response))
        except _FAILURES as error:
            connection.close()
            raise NoAnswerError(_why(error), sent=call.sent) from error
        finally:
            self._used_at = time.monotonic()

    def stream(self, request: Request, *, silence_s: float | None = None) -> Iterator[Answer | bytes]:
        """A refusal; or the chunks of a body as they arrive.

        `silence_s`: the longest time between two chunks; None: any.

        Raises:
            NoAnswerError: no answer came, or the stream broke off.
        """
        connection, response = self._new_connection(), None
        call = _Call(connection, time.monotonic() + ANSWER_S)
        try:
            response = self._send(call, request)
            if response.status >= 300:  # noqa: PLR2004 - only 2xx carries the stream
                yield Answer(response.status, _fields(response), call.read(response))
                return
            call.set_timeout(silence_s)
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk
            _end(response)
        except _FAILURES as error:
            raise NoAnswerError(_why(error), sent=call.sent) from error
        finally:
            if response is not None:
                response.close()  # else it keeps the socket open, and an engine at work
            connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port or http.client.HTTPS_PORT, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port or http.client.HTTP_PORT)

    def _send(self, call: "_Call", request: Request) -> http.client.HTTPResponse:
        if self._closed:
            raise CliError("the client was closed")
        call.connect()
        content = {} if request.body is None else {"Content-Type": "application/json"}
        headers = {**self._headers, **request.headers, **content}
        call.connection.request(request.method, self._path + request.target, request.body, headers)
        return call.connection.getresponse()


class _Call:
    """A request with the deadline of its complete answer. `sent`: a part of it may have reached the server."""

    def __init__(self, connection: http.client.HTTPConnection, until: float) -> None:
        self.connection = connection
        self.sent = False
        self._until = until
        self._socket: socket.socket | None = None  # kept here, since the connection forgets it where the server ends it

    def connect(self) -> None:
        if self.connection.sock is None:
            self.connection.timeout = min(CONNECT_S, self._left())
            self.connection.connect()
        self.sent, self._socket = True, self.connection.sock
        self.set_timeout(self._left())

    def set_timeout(self, seconds: float | None) -> None:
        """Of one read or write."""
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def read(self, response: http.client.HTTPResponse) -> bytes:
        chunks = []
        while not response.isclosed():
            self.set_timeout(self._left())
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
    """Verifies against the authority in a file, or the system's. Raises `UsageError` for an unusable file."""
    from http1.tls.pinned import trusting  # noqa: PLC0415 - most controllers of one host have no TLS

    try:
        return trusting(authority)
    except OSError as error:  # SSLError is one
        own = not isinstance(error, ssl.SSLError) and error.strerror
        why = own or "no certificate in PEM is there"
        raise UsageError(f"GPUWARD_CA: {authority} cannot be used: {why}") from error


def _has_data(idle: socket.socket) -> bool:
    """True where the server has closed an idle connection, or has sent what was not requested."""
    return bool(select.select([idle], [], [], 0)[0])


def _fields(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _end(response: http.client.HTTPResponse) -> None:
    """Releases an answer, so that the connection takes another request. Raises `IncompleteRead` for a short body."""
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
