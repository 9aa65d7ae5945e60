"""Sockets that notice within a minute that the other host is gone."""

import socket
from typing import Final

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
