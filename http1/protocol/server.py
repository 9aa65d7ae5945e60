"""A listening HTTP/1.1 server: makes the connections, sweeps what is overdue, and closes them in order."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from http1.daemon.sweeper import Sweeper
from http1.protocol.connection_rules import Connection
from http1.protocol.listening import BACKLOG, Acceptor, PlainAcceptor, open_listener
from http1.protocol.server_connection import ServerConnection, Service
from http1.protocol.states import State
from http1.tls.acceptor import TlsAcceptor

_SWEEP_S: Final = 1.0
_SEND_BUFFER_BYTES: Final = 160 * 1024  # else a kernel holds megabytes for a client that does not read
_CLOSE_POLL_S: Final = 0.02


class Server:
    """Serves on one port, from `listen` to `close`.

    Args:
        context: the certificate for the next handshake; None without TLS.
        plain: whether a server with a certificate also serves connections without TLS.
    """

    def __init__(
        self, service: Service, context: Callable[[], ssl.SSLContext] | None = None, *, plain: bool = False
    ) -> None:
        self._service = service
        self._connections: set[ServerConnection] = set()
        # Made once: each connection would keep methods of its own.
        self._opened, self._closed = self._connections.add, self._connections.discard
        self._server: Acceptor | None = None
        self._acceptor = None if context is None else TlsAcceptor(service.admission, self._made, context, plain=plain)
        self._bound: socket.socket | None = None
        self._retired = False
        self._sweeper = Sweeper("requests", _SWEEP_S, self._sweep)

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port that it listens on; 0 without one."""
        sockets = self._server.sockets if self._server is not None else ()
        return int(sockets[0].getsockname()[1]) if sockets else 0

    async def listen(self, host: str, port: int) -> None:
        """Binds and listens; `port` 0: any free one.

        Raises:
            OSError: the address is taken, or not this host's.
        """
        await self.listen_on(open_listener(host, port))

    async def listen_on(self, bound: socket.socket) -> None:
        self._bound = bound
        bound.listen(BACKLOG)
        server = self._acceptor or PlainAcceptor(self._made)
        server.listen(bound)
        self._server = server
        for listening in server.sockets:  # connections inherit it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._sweeper.start()

    def leave(self) -> None:
        """Takes no new connections: another process that has the same socket does."""
        self._bound = None
        if self._server is not None:
            self._server.close()

    def stop_listening(self) -> None:
        """Refuses new connections, also where other processes have the same socket."""
        if self._bound is not None:
            with contextlib.suppress(OSError):
                self._bound.shutdown(socket.SHUT_RDWR)
            self._bound = None
        if self._server is not None:
            self._server.close()

    def retire(self) -> None:
        """Ends each connection with its next answer; those at rest stay until then."""
        self._retired = True
        for connection in list(self._connections):
            connection.retire()

    def drain(self) -> None:
        """Closes each connection as soon as it is at rest."""
        for connection in list(self._connections):
            connection.drain()

    def connections(self) -> list[ServerConnection]:
        return list(self._connections)

    async def close(self, limit_s: float) -> None:
        """Refuses new connections, and ends open ones when they are at rest or the limit is over."""
        self.stop_listening()
        self.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while any(connection.state is not State.CLOSED for connection in self._connections):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(_CLOSE_POLL_S)
        for connection in list(self._connections):
            if connection.state is not State.CLOSED:
                connection.abort()
        if self._server is not None:
            self._server.abort()
        await asyncio.sleep(0)
        self._sweeper.stop()
        for connection in list(self._connections):
            connection.abort()

    def _made(self, record: Connection | None = None) -> ServerConnection:
        made = ServerConnection(self._service, opened=self._opened, closed=self._closed, record=record)
        if self._retired:  # accepted before, and not served yet
            made.retire()
        return made

    def _sweep(self, now: float) -> None:
        def look(connection: ServerConnection) -> None:
            if connection.overdue(now):
                connection.abort()

        self._sweeper.each(self._connections, look)
