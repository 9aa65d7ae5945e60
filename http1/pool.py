"""Kept connections by address: what is at rest can be used again; what is not is in no pool."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from http1.client_connection import ClientConnection
from http1.tls.pinned import Pinned, Verified, any_certificate, is_pinned

Address: TypeAlias = tuple[str, int] | Pinned | Verified | str  # host and port, or the path of a Unix socket
CONNECT_S: Final = 5.0
# Servers close kept connections by themselves: uvicorn after 5 s. A request that meets such a close fails.
IDLE_S: Final = 3.0
MAX_IDLE: Final = 64
_QUEUE_FULL_S: Final = 0.02  # until a Unix socket is tried again
_RECEIVE_BUFFER_BYTES: Final = 160 * 1024  # else a kernel holds megabytes for a client that does not read


class ConnectError(Exception):
    """No connection could be made: no byte of the request has left.

    Attributes:
        errno: of the operating system; None: it took too long.
    """

    def __init__(self, message: str, errno: int | None) -> None:
        super().__init__(message)
        self.errno = errno


class Pool:
    """Connections to servers. It bounds what is kept, not what is open: the caller bounds its requests.

    Args:
        idle_s: how long a connection is kept at rest, in seconds.
        max_idle: kept at rest per address.
        most: connections of all addresses; from so many on one at rest ends for each new one. None: no such bound.
        connect_s: limit for connecting, in seconds.
        prepare: sets options of a connected socket.
    """

    def __init__(
        self,
        *,
        idle_s: float = IDLE_S,
        max_idle: int = MAX_IDLE,
        most: int | None = None,
        connect_s: float = CONNECT_S,
        prepare: Callable[[socket.socket], None] = lambda _socket: None,
    ) -> None:
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._most = most
        self._connecting = 0
        self._connect_s = connect_s
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._resting: dict[Address, deque[ClientConnection]] = {}
        self._open: set[ClientConnection] = set()

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._open)

    @property
    def resting(self) -> list[ClientConnection]:
        """Those that are kept, of all addresses."""
        return [connection for resting in self._resting.values() for connection in resting]

    def take(self, address: Address) -> ClientConnection | None:
        """A kept connection that is at rest, the freshest first; None: connect."""
        resting = self._resting.get(address)
        oldest = self._loop.time() - self._idle_s
        while resting:
            connection = resting.pop()
            if connection.idle and connection.rested_since >= oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> ClientConnection:
        """A new connection.

        Raises:
            ConnectError: refused, unreachable, or not within the limit.
        """

        def made() -> ClientConnection:
            return ClientConnection(at_rest=partial(self._rest, address), closed=self._open.discard)

        self._make_way()
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_s):
                if isinstance(address, str):
                    transport, connection = await self._connect_unix(made, address)
                elif isinstance(address, Pinned):
                    transport, connection = await self._connect_pinned(made, address)
                elif isinstance(address, Verified):
                    transport, connection = await self._loop.create_connection(made, *address[:2], ssl=address[2])
                else:
                    transport, connection = await self._loop.create_connection(made, *address)
        except TimeoutError as error:
            # The kernel's own ETIMEDOUT has a number.
            raise ConnectError(str(error) or "no connection in time", error.errno) from error
        except OSError as error:
            # That of TLS numbers its own library.
            number = None if isinstance(error, ssl.SSLError) else error.errno
            raise ConnectError(str(error), number) from error
        finally:
            self._connecting -= 1
        self._open.add(connection)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            self._prepare(opened)
        return connection

    def _make_way(self) -> None:
        """Ends what rests beyond the bound: all addresses together could else take the files of what is under way."""
        if self._most is None:
            return
        while self._resting and len(self._open) + self._connecting >= self._most:
            address = next(iter(self._resting))
            resting = self._resting[address]
            if resting:
                rested = resting.popleft()
                self._open.discard(rested)
                rested.abort()
            if not resting:
                del self._resting[address]

    async def _connect_pinned(
        self, made: Callable[[], ClientConnection], address: Pinned
    ) -> tuple[asyncio.Transport, ClientConnection]:
        """Nothing is sent to a server that shows another certificate."""
        transport, connection = await self._loop.create_connection(
            made, address.host, address.port, ssl=any_certificate(), server_hostname=""
        )
        if not is_pinned(transport.get_extra_info("ssl_object"), address.fingerprint):
            transport.abort()
            raise ssl.SSLError("it shows another certificate than it has told")
        return transport, connection

    async def _connect_unix(
        self, made: Callable[[], ClientConnection], path: str
    ) -> tuple[asyncio.Transport, ClientConnection]:
        """Where the listener's queue is full, a Unix socket refuses at once instead of waiting, as TCP does."""
        while True:
            try:
                return await self._loop.create_unix_connection(made, path)
            except BlockingIOError:
                await asyncio.sleep(_QUEUE_FULL_S)

    def sweep(self) -> None:
        """Closes what was kept too long; the owner calls it about once a second."""
        oldest = self._loop.time() - self._idle_s
        for address, resting in list(self._resting.items()):
            while resting and (resting[0].rested_since < oldest or not resting[0].idle):
                resting.popleft().abort()
            if not resting:
                del self._resting[address]

    def close(self) -> None:
        """Ends all connections."""
        self._resting.clear()
        for connection in list(self._open):
            connection.abort()

    def _rest(self, address: Address, connection: ClientConnection) -> None:
        resting = self._resting.get(address)
        if resting is None:
            resting = self._resting[address] = deque()
        if len(resting) >= self._max_idle:
            resting.popleft().abort()
        resting.append(connection)
