"""An aiohttp site whose connections are bounded: in number, in time to a complete head, in time kept idle.

A middleware wraps handlers in `answering`, and calls `serve` when a request carried a valid key or credential.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, cast

import structlog
from aiohttp import web

from http1.connections import Connection, Connections, Limits, Refusal, State

log = structlog.get_logger(__name__)

BACKLOG: Final = 1024
_SWEEP_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0
_LAST_ANSWER_S: Final = 2.0
_HEAD_BYTES: Final = 128 * 1024  # aiohttp bounds a line and the number of lines, which together are more
_END_OF_HEAD: Final = b"\r\n\r\n"
_TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_SATURATIONS: Final = ("bound", "body", "refused")


class Bounds:
    """The bounded connections of one server, by the protocol object that aiohttp gives each request.

    Args:
        limits: bounds and deadlines.
        name: of the server, for logs.
        is_proxy: whether an address is a trusted proxy's, to which the bound for each address does not apply.
        closed: a metric. Called with `bound`, `head`, `busy`, `idle` or `body` for each connection that was closed for
            it, and with `refused` for each request that found too many others.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        name: str,
        is_proxy: Callable[[str], bool] = lambda _address: False,
        closed: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._connections = Connections(limits)
        self._limits = limits
        self._name = name
        self._is_proxy = is_proxy
        self._closed = closed
        self._gates: dict[asyncio.BaseProtocol, _Gate] = {}
        self._of: dict[Connection, _Gate] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._logged_s = float("-inf")
        self._saturated: dict[str, int] = {}

    def count(self, state: State) -> int:
        """How many connections are in a state."""
        return self._connections.count(state)

    @contextlib.contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """While a request is being answered."""
        gate = self._gates.get(request.protocol)
        if gate is None:  # closed meanwhile, or not through a bounded site
            yield
            return
        gate.answered = True
        self._connections.enter(gate.connection, State.BUSY, gate.now_s())
        try:
            yield
        finally:
            self._connections.enter(gate.connection, State.IDLE, gate.now_s())

    def is_last(self, request: web.BaseRequest) -> bool:
        """Whether a request's connection ends with its answer: a stranger's, so that none can send requests in a row.

        Trusted proxies keep theirs, which carry the requests of many clients.
        """
        gate = self._gates.get(request.protocol)
        return gate is not None and gate.connection.counted and not gate.connection.known

    def serve(self, request: web.BaseRequest, client: str = "", *, agent: bool = False) -> Refusal | None:
        """Notes that the request which is being answered carried a valid key or credential.

        Args:
            request: the request.
            client: whose key it was; "" where clients are not told apart.
            agent: whether it is an agent's, for which some connections are reserved.

        Returns:
            Why the request has to be refused: with 429 for its client, with 503 for all.
        """
        gate = self._gates.get(request.protocol)
        if gate is None:
            return None
        connection = gate.connection
        body = request.content
        refusal, yielding = self._connections.serve(
            connection, gate.now_s(), body=not body.is_eof(), client=client, agent=agent
        )
        if yielding is not None:
            self._close(yielding, "body")
        if refusal is not None:
            self._count("refused", gate.now_s())
        elif connection.state is State.BODY:
            body.on_eof(lambda: self._body_complete(gate))
        return refusal

    def _body_complete(self, gate: "_Gate") -> None:
        if gate.connection.state is State.BODY:
            self._connections.enter(gate.connection, State.BUSY, gate.now_s())

    def opened(self, gate: "_Gate") -> bool:
        """Takes a new connection up; False where it has to go at once."""
        self._gates[gate.inner] = gate
        self._of[gate.connection] = gate
        gate.connection.counted = not self._is_proxy(gate.connection.address)
        yielding = self._connections.admit(gate.connection)
        if yielding is not None:
            self._close(yielding, "bound")
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        return yielding is not gate.connection

    def received(self, gate: "_Gate", data: bytes) -> None:
        """Bytes came: on an idle connection a new head begins."""
        if gate.connection.state is State.IDLE:
            gate.head_bytes, gate.head_end = 0, b""
            self._connections.enter(gate.connection, State.HEAD, gate.now_s())
        # A body may arrive before the handler of its complete head is called.
        if gate.connection.state is State.HEAD and _END_OF_HEAD not in gate.head_end:
            gate.head_bytes += len(data)
            seen = gate.head_end + data
            gate.head_end = _END_OF_HEAD if _END_OF_HEAD in seen else seen[-3:]
            if gate.head_bytes > _HEAD_BYTES and gate.head_end != _END_OF_HEAD:
                self._close(gate.connection, "head")

    def lost(self, gate: "_Gate") -> None:
        """The connection is closed."""
        self._connections.remove(gate.connection)
        self._gates.pop(gate.inner, None)
        self._of.pop(gate.connection, None)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in self._connections.overdue(loop.time()):
            self._close(connection, connection.state.value)
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if len(self._connections) else None

    def _close(self, connection: Connection, reason: str) -> None:
        self._connections.remove(connection)
        gate = self._of.get(connection)
        if gate is not None:
            self._count(reason, gate.now_s())
            gate.close(answer=_TIMED_OUT if reason == State.HEAD and gate.awaits_first_answer else None)

    def _count(self, reason: str, now_s: float) -> None:
        """Counts what a bound did; says at most once a minute that connections are saturated."""
        self._closed(reason)
        if reason not in _SATURATIONS:
            return
        self._saturated[reason] = self._saturated.get(reason, 0) + 1
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "connections are saturated",
                server=self._name,
                most=self._limits.most,
                most_unknown_per_address=self._limits.most_unknown_per_address,
                **self._saturated,
            )
            self._saturated.clear()


class _Gate(asyncio.Protocol):
    """Stands before aiohttp's protocol of one connection and passes everything on."""

    def __init__(self, bounds: Bounds, inner: asyncio.Protocol, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self.now_s = loop.time
        self.answered = False
        self.head_bytes = 0
        self.head_end = b""  # its last bytes
        self.connection = Connection("", loop.time())
        self._bounds = bounds
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._passes = False

    @property
    def awaits_first_answer(self) -> bool:
        """Whether a part of the first request has come, and nothing was answered yet."""
        return self.head_bytes > 0 and not self.answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.connection.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.connection.since_s = self.now_s()
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
        self._bounds.lost(self)
        if self._passes:
            self._passes = False
            self.inner.connection_lost(exc)

    def close(self, answer: bytes | None) -> None:
        """Ends the connection, with a last answer where one is given; its file is free at once or in a moment."""
        if self._transport is None:
            return
        if answer is None:
            self._transport.abort()
        else:
            self._transport.write(answer)
            self._transport.close()
            self._loop.call_later(_LAST_ANSWER_S, self._transport.abort)  # the other side may read nothing


class BoundedSite(web.TCPSite):
    """A TCP site of an aiohttp runner whose connections are bounded."""

    def __init__(self, runner: web.BaseRunner, bounds: Bounds, host: str, port: int) -> None:
        super().__init__(runner, host, port)
        self._bounds = bounds
        self._listen_on = (host, port)

    async def start(self) -> None:
        """Binds and listens.

        Raises:
            OSError: the address is taken, or not this host's.
        """
        await web.BaseSite.start(self)
        loop, make_protocol = asyncio.get_running_loop(), cast("web.Server", self._runner.server)
        self._server = await loop.create_server(
            lambda: _Gate(self._bounds, make_protocol(), loop), *self._listen_on, backlog=BACKLOG
        )
