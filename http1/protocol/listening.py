"""Listening sockets, and what takes their connections, many in one turn of the loop.

A port has one socket for each process that serves there, so that the kernel spreads connections. A service manager may
hold the port instead (systemd's socket units): then all processes share its one socket. uvloop's own servers take one
connection in each turn of the loop. A loop that many connections keep busy turns slowly, and further connections then
wait so long that their clients give up.
"""

import asyncio
import errno
import os
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import structlog

from http1.daemon.log_limit import LogLimit

BACKLOG: Final = 1024
_FIRST_INHERITED: Final = 3  # by systemd's convention, after the standard streams
_COUNT: Final = "LISTEN_FDS"
_PID: Final = "LISTEN_PID"
_NAMES: Final = "LISTEN_FDNAMES"
_NOT_LISTENING: Final = "LISTEN_FDS: is not a listening TCP socket; write ListenStream=ADDRESS:PORT in the socket unit"


def open_listeners(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """`count` sockets that listen on one port; 0: any free one.

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
            for listening in opened:
                listening.listen(BACKLOG)
        except BaseException:
            for listening in opened:
                listening.close()
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


log = structlog.get_logger(__name__)

_AT_ONCE: Final = 64  # accepted in one turn of the loop
_PAUSE_S: Final = 0.5
_ENDED: Final = frozenset({errno.EINVAL, errno.EBADF})


class Acceptor(ABC):
    """Takes the connections of its sockets, from `listen` to `close`. Made in the loop that serves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failures = LogLimit()
        self._resume: dict[socket.socket, asyncio.TimerHandle] = {}
        self.sockets: list[socket.socket] = []

    def listen(self, listening: socket.socket) -> None:
        """Takes the connections of a listening socket, which it closes at the end."""
        listening.setblocking(False)
        self.sockets.append(listening)
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        for handle in self._resume.values():
            handle.cancel()
        self._resume.clear()
        while self.sockets:
            listening = self.sockets.pop()
            self._loop.remove_reader(listening.fileno())
            listening.close()

    @abstractmethod
    def abort(self) -> None:
        """Ends what has arrived and is not served yet."""

    @abstractmethod
    def _take(self, accepted: socket.socket, address: Any) -> None:
        """A connection has arrived."""

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._take(accepted, address)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Tries again in a moment, as where the system has no files left. A socket that was shut down has no more."""
        self._loop.remove_reader(listening.fileno())
        if error.errno in _ENDED:
            return
        if (more := self._failures.admit("not accepted")) is not None:
            log.warning("connections not accepted", error=str(error), more_before=more)
        self._resume[listening] = self._loop.call_later(_PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        self._resume.pop(listening, None)
        self._loop.add_reader(listening.fileno(), self._accept, listening)


class PlainAcceptor(Acceptor):
    """Takes connections without TLS. `made`: makes the protocol of a connection."""

    def __init__(self, made: Callable[[], asyncio.BaseProtocol]) -> None:
        super().__init__()
        self._made = made
        self._arriving: set[asyncio.Task[None]] = set()

    def _take(self, accepted: socket.socket, address: Any) -> None:  # noqa: ARG002 - the transport names it
        task = self._loop.create_task(self._connect(accepted), name="connection-accepted")
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)
        task.add_done_callback(lambda done: accepted.close() if done.cancelled() else None)

    def abort(self) -> None:
        """Ends the connections that have arrived and are not served yet."""
        for task in self._arriving:
            task.cancel()

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._made, accepted)
        except OSError as error:
            accepted.close()
            if (more := self._failures.admit(str(error))) is not None:
                log.info("connection not accepted", error=str(error), more_before=more)
        except Exception:  # a defect of ours ends this connection alone
            accepted.close()
            log.exception("connection not accepted")
