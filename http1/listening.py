"""The listening sockets of one port: one for each process that serves there, so that the kernel spreads connections."""

import socket
from typing import Final

BACKLOG: Final = 1024


def open_listeners(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """So many sockets that listen on one port; 0: any free one.

    While they are open, new connections wait, also where the process that serves one of them is replaced.

    Raises:
        OSError: the address is taken, or not this host's.
    """
    opened: list[socket.socket] = []
    with _bind(host, port, shared=False) as first:
        # Each is bound to a number: a socket that took any port would lose it where one of its processes shuts it down.
        number = first.getsockname()[1]
        try:
            opened.extend(_bind(host, number, shared=True) for _ in range(count))
            for one in opened:
                one.listen(BACKLOG)
        except BaseException:
            for one in opened:
                one.close()
            raise
    return opened


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens on a port of its own; 0: any free one.

    Raises:
        OSError: the address is taken, or not this host's.
    """
    bound = _bind(host, port, shared=False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    bound.listen(BACKLOG)
    return bound


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """A bound socket. One that is not shared is refused where the port is in use; then it lets others share."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        bound.close()
        raise
    return bound
