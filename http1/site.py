"""An aiohttp site whose connections are bounded: in number, in time to a complete head, in time kept idle.

A middleware wraps handlers in `answering`, and calls `serve` when a request carried a valid key or credential.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from aiohttp import web

from http1.protocol.admission import KEY, Connection, Door, Refusal, Standing, State
from http1.protocol.listening import PlainAcceptor, open_listener
from http1.tls.acceptor import TlsAcceptor

BACKLOG: Final = 1024
TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LAST_ANSWER_S: Final = 2.0
_HEAD_BYTES: Final = 128 * 1024  # aiohttp bounds a line and the number of lines, which together are more
_END_OF_HEAD: Final = b"\r\n\r\n"


class Bounds(Door):
    """The bounded connections of one server, by the protocol object that aiohttp gives each request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gates: dict[asyncio.BaseProtocol, _Gate] = {}

    @contextlib.contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """While a request is being answered."""
        gate = self._gates.get(request.protocol)
        if gate is None:  # closed meanwhile, or not through a bounded site
            yield
            return
        gate.answered = True
        self.enter(gate.record, State.BUSY)
        try:
            yield
        finally:
            self.enter(gate.record, State.IDLE)

    def is_last(self, request: web.BaseRequest) -> bool:
        """Whether a request's connection ends with its answer: a stranger's, so that none can send requests in a row.

        Trusted proxies keep theirs, which carry the requests of many clients.
        """
        gate = self._gates.get(request.protocol)
        return gate is not None and gate.record.counted and not gate.record.known

    def serve(self, request: web.BaseRequest, client: str = "", *, standing: Standing = KEY) -> Refusal | None:
        """Notes that the request which is being answered carried a valid key or credential; see `admit_request`."""
        gate = self._gates.get(request.protocol)
        if gate is None:
            return None
        body = request.content
        refusal = self.admit_request(gate.record, body=not body.is_eof(), client=client, standing=standing)
        if refusal is None and gate.record.state is State.BODY:
            body.on_eof(lambda: self.body_complete(gate.record))
        return refusal

    def opened(self, gate: "_Gate") -> bool:
        """Takes a new connection up; False where it has to go at once."""
        self._gates[gate.inner] = gate
        return self.admit(gate)

    def received(self, gate: "_Gate", data: bytes) -> None:
        """Bytes came: on an idle connection a new head begins."""
        if gate.record.state is State.IDLE:
            gate.head_bytes, gate.head_end = 0, b""
            self.enter(gate.record, State.HEAD)
        # A body may arrive before the handler of its complete head is called.
        if gate.record.state is State.HEAD and _END_OF_HEAD not in gate.head_end:
            gate.head_bytes += len(data)
            seen = gate.head_end + data
            gate.head_end = _END_OF_HEAD if _END_OF_HEAD in seen else seen[-3:]
            if gate.head_bytes > _HEAD_BYTES and gate.head_end != _END_OF_HEAD:
                self.close(gate.record, "head")

    def gone(self, gate: "_Gate") -> None:
        """The connection is closed."""
        self.lost(gate.record)
        self._gates.pop(gate.inner, None)


class _Gate(asyncio.Protocol):
    """Stands before aiohttp's protocol of one connection and passes everything on."""

    def __init__(
        self,
        bounds: Bounds,
        inner: asyncio.Protocol,
        loop: asyncio.AbstractEventLoop,
        record: Connection | None = None,
    ) -> None:
        self.inner = inner
        self.answered = False
        self.head_bytes = 0
        self.head_end = b""  # its last bytes
        self.record = record or Connection("", loop.time())
        self._bounds = bounds
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._passes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.record.group is None:  # else it was admitted before its handshake
            peer = transport.get_extra_info("peername")
            self.record.address = str(peer[0]) if isinstance(peer, tuple) else ""
            self.record.since_s = self._loop.time()
        self._passes = self._bounds.opened(self)
        if self._passes:
            self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._passes:
            self._bounds.received(self, data)
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self._passes else None

    def pause_writing(self) -> None:
        if self._passes:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._passes:
            self.inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.gone(self)
        if self._passes:
            self._passes = False
            self.inner.connection_lost(exc)

    def shut(self, *, late_head: bool) -> None:
        """Ends the connection, with a last answer where one is due; its file is free at once or in a moment."""
        if self._transport is None:
            return
        if late_head and self.head_bytes > 0 and not self.answered:
            self._transport.write(TIMED_OUT)
            self._transport.close()
            self._loop.call_later(_LAST_ANSWER_S, self._transport.abort)  # the other side may read nothing
        else:
            self._transport.abort()


def _accepting(made: Callable[[], asyncio.BaseProtocol], listening: socket.socket) -> asyncio.Server:
    """Of what is returned, its sockets and `close` are all that is used."""
    acceptor = PlainAcceptor(made)
    acceptor.listen(listening)
    return cast("asyncio.Server", acceptor)


class BoundedUnixSite(web.SockSite):
    """A site on a bound Unix socket whose connections are bounded."""

    def __init__(self, runner: web.BaseRunner, bounds: Bounds, bound: socket.socket) -> None:
        super().__init__(runner, bound)
        self._bounds = bounds

    async def start(self) -> None:
        """Listens."""
        await web.BaseSite.start(self)
        loop, make_protocol = asyncio.get_running_loop(), cast("web.Server", self._runner.server)
        self._sock.listen(BACKLOG)
        self._server = _accepting(lambda: _Gate(self._bounds, make_protocol(), loop), self._sock)


class BoundedSite(web.TCPSite):
    """A TCP site of an aiohttp runner whose connections are bounded.

    Args:
        runner: of the application.
        bounds: of the connections.
        host: to listen on.
        port: to listen on; 0: any free one.
        context: the certificate for the next handshake; None: it speaks no TLS.
    """

    def __init__(
        self,
        runner: web.BaseRunner,
        bounds: Bounds,
        host: str,
        port: int,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        super().__init__(runner, host, port)
        self._bounds = bounds
        self._listen_on = (host, port)
        self._context = context
        self._acceptor: TlsAcceptor | None = None

    async def start(self) -> None:
        """Binds and listens.

        Raises:
            OSError: the address is taken, or not this host's.
        """
        await web.BaseSite.start(self)
        loop, make_protocol = asyncio.get_running_loop(), cast("web.Server", self._runner.server)

        def made(record: Connection | None = None) -> _Gate:
            return _Gate(self._bounds, make_protocol(), loop, record)

        if self._context is None:
            self._server = _accepting(made, open_listener(*self._listen_on))
            return
        self._acceptor = TlsAcceptor(self._bounds, made, self._context)
        self._acceptor.listen(open_listener(*self._listen_on))
        self._server = cast("asyncio.Server", self._acceptor)  # its sockets, and `close`, are all that is used

    async def stop(self) -> None:
        """Ends it, and the handshakes under way."""
        await super().stop()
        if self._acceptor is not None:
            self._acceptor.abort()
