"""The listening sockets of one port: one for each process that serves there, so that the kernel spreads connections.

A service manager may hold the port instead (systemd's socket units): then all processes share its one socket.
"""

import os
import socket
import stat
from typing import Final

BACKLOG: Final = 1024
_FIRST_INHERITED: Final = 3  # by systemd's convention, after the standard streams
_COUNT: Final = "LISTEN_FDS"
_PID: Final = "LISTEN_PID"
_NAMES: Final = "LISTEN_FDNAMES"
_NOT_LISTENING: Final = "LISTEN_FDS: is not a listening TCP socket; write ListenStream=ADDRESS:PORT in the socket unit"


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


def inherited_listener() -> socket.socket | None:
    """The listening socket that a service manager has passed to this process; None: it has passed none.

    The variables that name it are removed, and the socket is kept from programs that this process runs.

    Raises:
        OSError: there are several, or it does not listen for TCP connections.
    """
    count, pid, _ = (os.environ.pop(name, "") for name in (_COUNT, _PID, _NAMES))
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise OSError(f"LISTEN_FDS: must be one socket, got {count}; keep one ListenStream= in the socket unit")
    os.set_inheritable(_FIRST_INHERITED, False)
    if not stat.S_ISSOCK(os.fstat(_FIRST_INHERITED).st_mode):
        raise OSError(_NOT_LISTENING)
    inherited = socket.socket(fileno=_FIRST_INHERITED)
    listens = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if inherited.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
        inherited.close()
        raise OSError(_NOT_LISTENING)
    return inherited


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
