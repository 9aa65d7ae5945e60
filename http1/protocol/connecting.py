"""How a connection to a server is opened: over TCP, TLS with a pinned or verified certificate, or a Unix socket."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from http1.tls.pinned import Pinned, Verified, any_certificate, is_pinned

Address: TypeAlias = tuple[str, int] | Pinned | Verified | str  # host and port, or the path of a Unix socket
CONNECT_S: Final = 5.0
_QUEUE_FULL_S: Final = 0.02  # until a Unix socket is tried again
_RECEIVE_BUFFER_BYTES: Final = 160 * 1024  # else a kernel holds megabytes for a client that does not read
P = TypeVar("P", bound=asyncio.BaseProtocol)


class ConnectError(Exception):
    """No connection could be made: no byte of the request has left.

    Attributes:
        errno: the operating system's error; None: it took too long.
    """

    def __init__(self, message: str, errno: int | None) -> None:
        super().__init__(message)
        self.errno = errno


async def opened(address: Address, made: Callable[[], P], limit_s: float) -> tuple[asyncio.BaseTransport, P]:
    """A new connection and its protocol, which `made` makes.

    Raises:
        ConnectError: refused, unreachable, or not within the limit.
    """
    loop = asyncio.get_running_loop()
    transport: asyncio.BaseTransport
    try:
        async with asyncio.timeout(limit_s):
            if isinstance(address, str):
                transport, protocol = await _opened_unix(loop, address, made)
            elif isinstance(address, Pinned):
                transport, protocol = await _opened_pinned(loop, address, made)
            elif isinstance(address, Verified):
                transport, protocol = await loop.create_connection(made, *address[:2], ssl=address[2])
            else:
                transport, protocol = await loop.create_connection(made, *address)
    except TimeoutError as error:
        # The kernel's own ETIMEDOUT has a number.
        raise ConnectError(str(error) or "no connection in time", error.errno) from error
    except OSError as error:
        # That of TLS numbers its own library.
        number = None if isinstance(error, ssl.SSLError) else error.errno
        raise ConnectError(str(error), number) from error
    made_socket = transport.get_extra_info("socket")
    if made_socket is not None:
        made_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return transport, protocol


async def _opened_pinned(
    loop: asyncio.AbstractEventLoop, address: Pinned, made: Callable[[], P]
) -> tuple[asyncio.BaseTransport, P]:
    """Nothing is sent to a server that shows another certificate."""
    transport, protocol = await loop.create_connection(
        made, address.host, address.port, ssl=any_certificate(), server_hostname=""
    )
    if not is_pinned(transport.get_extra_info("ssl_object"), address.fingerprint):
        transport.abort()
        raise ssl.SSLError("it shows another certificate than the pinned one")
    return transport, protocol


async def _opened_unix(
    loop: asyncio.AbstractEventLoop, path: str, made: Callable[[], P]
) -> tuple[asyncio.BaseTransport, P]:
    """Where the listener's queue is full, a Unix socket refuses at once instead of waiting, as TCP does."""
    while True:
        try:
            return await loop.create_unix_connection(made, path)
        except BlockingIOError:
            await asyncio.sleep(_QUEUE_FULL_S)


# A host that is gone acknowledges nothing, and its connections end after a minute. While an engine is merely slow, the
# kernel of its host answers.
_LIVENESS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
)


def notice_gone_hosts(made: socket.socket) -> None:
    """Sets the options."""
    for level, name, value in _LIVENESS:
        if (option := getattr(socket, name, None)) is not None:  # some exist on Linux alone
            made.setsockopt(level, option, value)
