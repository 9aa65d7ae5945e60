"""A plain proxy with one hop, for comparison: no keys, no limits, one target, no retries.

Usage: python reference_proxy.py PORT TARGET_PORT
"""

import asyncio
import sys
from collections import deque
from typing import Any, cast

import httptools
import uvloop

HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"host", b"content-length"})


class Pool:
    """Idle connections to the target."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: deque[Upstream] = deque()

    async def take(self) -> "Upstream":
        while self._idle:
            if not (upstream := self._idle.pop()).lost:
                return upstream
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(lambda: Upstream(self), "127.0.0.1", self._port)
        return protocol

    def put(self, upstream: "Upstream") -> None:
        self._idle.append(upstream)


class Side(asyncio.Protocol):
    """A side of an exchange. While it cannot write, the other side does not read."""

    other: "Side | None" = None
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()


class Upstream(Side):
    """A connection to the target."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser: Any = None
        self._out: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunked = self._complete = self.lost = False

    def begin(self, client: "Client") -> None:
        self.other, self._complete = client, False
        self._parser, self._headers = httptools.HttpResponseParser(self), []

    def data_received(self, data: bytes) -> None:
        client = cast("Client", self.other)
        if client is None:
            self.transport.abort()
            return
        self._parser.feed_data(data)
        client.transport.write(b"".join(self._out))
        self._out.clear()
        if self._complete:
            self.other = client.other = None
            self._pool.put(self)
            client.answered()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        names = {name.lower(): value for name, value in self._headers}
        self._chunked = b"content-length" not in names
        lines = [b"HTTP/1.1 %d OK" % self._parser.get_status_code()]
        lines += [name + b": " + value for name, value in self._headers if name.lower() not in HOP_BY_HOP]
        framing = b"Transfer-Encoding: chunked" if self._chunked else b"Content-Length: " + names[b"content-length"]
        self._out.append(b"\r\n".join([*lines, framing, b"", b""]))

    def on_body(self, body: bytes) -> None:
        self._out.append(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def on_message_complete(self) -> None:
        self._complete = True
        if self._chunked:
            self._out.append(b"0\r\n\r\n")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every end is the same
        """Ends the client's connection, too, if an answer was due."""
        self.lost = True
        if self.other is not None:
            self.other.transport.abort()


class Client(Side):
    """A client's connection: one request at a time, with a Content-Length."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._pending: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self.other is not None and self._pending:
            self._flush()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        lines = [self._parser.get_method() + b" " + self._url + b" HTTP/1.1", b"Host: engine"]
        kept = HOP_BY_HOP - {b"content-length"}
        lines += [name + b": " + value for name, value in self._headers if name.lower() not in kept]
        self._pending.append(b"\r\n".join([*lines, b"", b""]))
        self._url, self._headers = b"", []
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        upstream = await self._pool.take()
        upstream.begin(self)
        self.other = upstream
        self._flush()

    def on_body(self, body: bytes) -> None:
        self._pending.append(body)

    def _flush(self) -> None:
        assert self.other is not None
        self.other.transport.write(b"".join(self._pending))
        self._pending.clear()

    def answered(self) -> None:
        """The next request may come; clients of the bench do not send it earlier."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - every end is the same
        """Ends the target's connection, too, if an answer was due."""
        if self._task is not None:
            self._task.cancel()
        if self.other is not None:
            self.other.other = None
            self.other.transport.abort()


async def serve(port: int, target_port: int) -> None:
    pool = Pool(target_port)
    server = await asyncio.get_running_loop().create_server(lambda: Client(pool), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
