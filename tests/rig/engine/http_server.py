"""HTTP/1.1 on a loopback port: bodies are streamed, answers are sent complete or in chunks.

A request whose client closes is cancelled at once. It shares no code with the gateway's HTTP, which it tests.
"""

import asyncio
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, cast

import httptools

from rig.engine.exchange import Answer, Body, Request

_BACKLOG: Final = 4096
_KEPT_S: Final = 75.0
_MALFORMED: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Handle = Callable[[Request, Answer], Awaitable[None]]


class Connection(asyncio.Protocol):
    """One client's connection: requests one after the other."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._receiving: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        self._writable: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every end cancels
        self._server.connections.discard(self)
        self._transport = None
        self._end()

    def eof_received(self) -> None:
        """Clients leave by closing their side."""
        self._end()

    def _end(self) -> None:
        self._waiting.clear()
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, which calls the `on_` methods."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._task is None:
                self.write(_MALFORMED)
            self.close()

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        expects = any(name == "expect" and value.lower() == "100-continue" for name, value in self._headers)
        request = Request(
            self._parser.get_method().decode("latin-1"),
            self._url.partition(b"?")[0].decode("latin-1"),
            self._headers,
            Body(self, expects=expects),
            keep_alive=self._parser.should_keep_alive(),
        )
        self._receiving = request
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._task is None:
            self._start(request)
        else:
            self._waiting.append(request)

    def on_body(self, body: bytes) -> None:
        if self._receiving is not None:
            self._receiving.body.feed(body)

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            self._receiving.body.finish()

    def _start(self, request: Request) -> None:
        self._task = self._loop.create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        answer = Answer(self, request)
        try:
            await self._server.handle(request, answer)
        except Exception:  # noqa: BLE001 - one request's failure is not the engine's
            traceback.print_exc(file=sys.stderr)
            if not answer.started:
                answer.send(500, (), b"")
        finally:
            self._task = None
        if not request.body.complete:
            request.body.discard()
        if not answer.ended or not answer.keep_alive or (request.body.expects and not request.body.complete):
            self.close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._rest()

    def _rest(self) -> None:
        self._idle = self._loop.call_later(_KEPT_S, self.close)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes after all bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def drained(self) -> None:
        """Returns when the client may be sent more; its close cancels."""
        if self._writable is not None:
            await self._writable

    async def flushed(self) -> None:
        """Returns when the system has taken all bytes."""
        while self._transport is not None and self._transport.get_write_buffer_size():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)


class HttpServer:
    """Serves connections until it is closed."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises OSError if the address is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=_BACKLOG)

    def close(self) -> None:
        """Stops listening and cuts all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
