"""One request and its answer on a connection."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Final, Protocol

_BUFFERED_BYTES: Final = 256 * 1024  # of a body, before its client has to wait
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}

Headers = Iterable[tuple[str, str]]


class Link(Protocol):
    """The connection, as a request and its answer use it."""

    def write(self, data: bytes) -> None:
        """Sends bytes, if the client is still there."""

    def close(self) -> None:
        """Closes after all bytes are sent."""

    def pause_reading(self) -> None:
        """Lets the client wait."""

    def resume_reading(self) -> None:
        """Takes more from the client."""

    async def drained(self) -> None:
        """Returns when the client may be sent more."""

    async def flushed(self) -> None:
        """Returns when the system has taken all bytes."""


class Body:
    """A request's body in chunks."""

    def __init__(self, connection: Link, *, expects: bool) -> None:
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._news: asyncio.Future[None] | None = None
        self.expects = expects  # the client sends it only after a 100
        self.complete = False
        self.discarded = False

    def feed(self, chunk: bytes) -> None:
        if self.discarded:
            return
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > _BUFFERED_BYTES:
            self._connection.pause_reading()
        self._notify()

    def finish(self) -> None:
        self.complete = True
        self._notify()

    def discard(self) -> None:
        """Drops present and later chunks."""
        self.discarded = True
        self._chunks.clear()
        self._connection.resume_reading()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks, until the body is complete."""
        if self.expects and not self.complete and not self._chunks:
            self._connection.write(_CONTINUE)
        self.expects = False
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                yield chunk
            if self.complete:
                return
            self._connection.resume_reading()
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def _notify(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Request:
    """The head of a request, and its body."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path")

    def __init__(self, method: str, path: str, headers: list[tuple[str, str]], body: Body, *, keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.headers = headers  # names in lower case
        self.body = body
        self.keep_alive = keep_alive

    def header(self, name: str) -> str:
        """A header's value by its name in lower case, or ""."""
        return next((value for known, value in self.headers if known == name), "")


class Answer:
    """The answer to one request: begin once, write, end once."""

    def __init__(self, connection: Link, request: Request) -> None:
        self._connection = connection
        self._bare = request.method == "HEAD"
        self._chunked = False
        self.keep_alive = request.keep_alive
        self.started = False
        self.ended = False

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Sends the head; without a length the body is sent in chunks."""
        lines = [
            f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        lines.append("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}")
        if not self.keep_alive:
            lines.append("Connection: close")
        self.started, self._chunked = True, length is None
        self._connection.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def write(self, data: bytes) -> None:
        """Returns when the client has taken most of the sent bytes."""
        if data and not self._bare:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            await self._connection.drained()

    def end(self) -> None:
        self.ended = True
        if self._chunked and not self._bare:
            self._connection.write(b"0\r\n\r\n")

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Sends a complete answer."""
        self.begin(status, headers, length=len(body))
        if not self._bare:
            self._connection.write(body)
        self.ended = True

    def cut(self) -> None:
        """Closes the connection after the written bytes, without the answer's end."""
        self._connection.close()

    async def flushed(self) -> None:
        """Returns when the system has taken all bytes."""
        await self._connection.flushed()
