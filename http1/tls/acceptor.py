"""Takes connections of a port that speaks TLS: their handshakes have a deadline and count against its bounds.

asyncio tells a protocol of a connection only after its handshake, when it is too late to bound those that end none.
So each connection is admitted as it arrives, with the time that every new connection has for its first head.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Connection
from http1.protocol.listening import Acceptor

log = structlog.get_logger(__name__)

_HANDSHAKE_S: Final = 10.0
_SHUTDOWN_S: Final = 2.0  # for the other side's word of farewell
_LAST_ANSWER_S: Final = 2.0
_DROPPED_BYTES: Final = 64 * 1024
_CLIENT_HELLO: Final = 0x16  # the first byte of a handshake
_MESSAGE: Final = b'{"error": {"code": "tls_required", "message": "this port speaks TLS; use https://"}}'
PLAIN_REFUSED: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_MESSAGE), _MESSAGE)
)


class TlsAcceptor(Acceptor):
    """Takes the connections of a port that speaks TLS.

    Args:
        made: makes the protocol of a connection whose entry the admission has.
        context: the certificate for the next handshake.
        plain: it takes connections without TLS, too; else these get an answer that explains it.
    """

    def __init__(
        self,
        admission: ConnectionAdmission,
        made: Callable[[Connection], asyncio.BaseProtocol],
        context: Callable[[], ssl.SSLContext],
        *,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.admission = admission
        self._made = made
        self._context = context
        self._plain = plain
        self._arriving: set[_Arriving] = set()

    def abort(self) -> None:
        for arriving in list(self._arriving):
            arriving.shut(late_head=False)

    async def serve(self, arriving: "_Arriving") -> None:
        """Makes the protocol of a connection that has arrived, or ends it."""
        accepted = arriving.accepted
        try:
            first = await arriving.first_byte()
            if first == _CLIENT_HELLO or (self._plain and first is not None):
                await self._connect(arriving, secure=first == _CLIENT_HELLO)
            elif first is not None:
                self.admission.count_closed("handshake")
                await arriving.refuse_plain(first)
        except (OSError, EOFError) as error:  # SSLError and TimeoutError are OSErrors
            self._failed(arriving, error)
        except Exception:  # a defect of ours ends this connection alone
            log.exception("connection not accepted")
        finally:
            if not arriving.taken:
                self.admission.lost(arriving.record)
                accepted.close()
            self._arriving.discard(arriving)

    async def _connect(self, arriving: "_Arriving", *, secure: bool) -> None:
        def made() -> asyncio.BaseProtocol:
            return self._made(arriving.record)

        arriving.taken = True  # the transport closes the socket, and its protocol reports its end
        try:
            if secure:
                await self._loop.connect_accepted_socket(
                    made,
                    arriving.accepted,
                    ssl=self._context(),
                    ssl_handshake_timeout=_HANDSHAKE_S,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
            else:
                await self._loop.connect_accepted_socket(made, arriving.accepted)
        except BaseException:
            # A protocol whose connection was made must also lose it. Repeating that changes nothing.
            self.admission.lost(arriving.record)
            raise

    def _take(self, accepted: socket.socket, address: Any) -> None:
        host = str(address[0]) if isinstance(address, tuple) else ""
        arriving = _Arriving(accepted, Connection(host, self._loop.time()))
        if self.admission.admit(arriving):
            self._arriving.add(arriving)
            arriving.task = self._loop.create_task(self.serve(arriving), name="tls-handshake")
        else:
            accepted.close()

    def _failed(self, arriving: "_Arriving", error: Exception) -> None:
        self.admission.count_closed("handshake")
        why = getattr(error, "reason", None) or str(error) or type(error).__name__
        if (more := self._failures.admit(f"{arriving.record.address} {why}")) is not None:
            log.info("TLS handshake failed", peer=arriving.record.address, error=why, more_before=more)


class _Arriving:
    """A connection whose handshake is not complete."""

    __slots__ = ("accepted", "record", "taken", "task")

    def __init__(self, accepted: socket.socket, record: Connection) -> None:
        self.accepted = accepted
        self.record = record
        self.taken = False
        self.task: asyncio.Task[None] | None = None

    def shut(self, *, late_head: bool) -> None:  # noqa: ARG002 - no answer is possible before the handshake
        """Ends it for the admission."""
        if self.task is not None:
            self.task.cancel()

    async def first_byte(self) -> int | None:
        """The client's first byte, which stays to be read; None if it has closed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = self.accepted.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                await _readable(loop, self.accepted)
            else:
                return data[0] if data else None

    async def refuse_plain(self, first: int) -> None:
        """Answers HTTP without TLS, and reads on for a moment, so that a reset does not take the answer."""
        loop = asyncio.get_running_loop()
        if bytes((first,)).isalpha():
            self.accepted.send(PLAIN_REFUSED)  # fits into the buffer of a new connection
        self.accepted.shutdown(socket.SHUT_WR)
        dropped = 0
        async with asyncio.timeout(_LAST_ANSWER_S):
            while dropped < _DROPPED_BYTES and (data := await loop.sock_recv(self.accepted, 4096)):
                dropped += len(data)


async def _readable(loop: asyncio.AbstractEventLoop, waiting: socket.socket) -> None:
    ready = loop.create_future()
    loop.add_reader(waiting.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(waiting.fileno())
