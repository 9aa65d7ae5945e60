"""A context whose connections are bounded in what OpenSSL does by itself: long handshakes and requests for new keys.

In TLS 1.3 a peer may request new keys in each record, of 27 bytes. OpenSSL sets no bound, and obeys thousands in one
read, while nothing else runs in the loop. So it gets what has arrived in small parts, and bytes that bring no content
are counted. In TLS 1.2 a new handshake is refused.
"""

import ssl
import time
from typing import Any, Final, Self

MOST_HANDSHAKE_BYTES: Final = 64 * 1024
MOST_EMPTY_BYTES: Final = 64 * 1024  # in a minute, of records without content
_PERIOD_S: Final = 60.0
_PART_BYTES: Final = 16 * 1024
_RECORD_BYTES: Final = 64  # around the content of a record
_CIPHERS: Final = (
    "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: none with CBC, whose padding has leaked; those of 1.3 stay
)


class BoundedObject(ssl.SSLObject):
    """One connection."""

    _arrived: ssl.MemoryBIO  # the transport writes here
    _incoming: ssl.MemoryBIO  # OpenSSL reads here
    _handshake_bytes = 0
    _empty_bytes = 0
    _counted_since_s = float("-inf")

    def bound(self, arrived: ssl.MemoryBIO, incoming: ssl.MemoryBIO) -> Self:
        """Sets where the peer's bytes arrive, and where OpenSSL reads them."""
        self._arrived = arrived
        self._incoming = incoming
        return self

    def do_handshake(self) -> None:
        while True:
            before = self._incoming.pending
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                self._handshake_bytes += before
                if self._handshake_bytes > MOST_HANDSHAKE_BYTES:
                    message = f"a handshake of more than {MOST_HANDSHAKE_BYTES} bytes"
                    raise ssl.SSLError(ssl.SSL_ERROR_SSL, message) from None
                if not self._take_part():
                    raise
            else:
                return

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - the name of the base
        while True:
            before = self._incoming.pending
            try:
                got: Any = super().read(len, buffer)
            except ssl.SSLWantReadError:
                self._count(before - self._incoming.pending)
                if not self._take_part():
                    raise
            else:
                size = got if buffer is not None else got.__len__()
                self._count(before - self._incoming.pending - size - _RECORD_BYTES)
                return got

    def pending(self) -> int:
        """As of each `SSLObject`, with what OpenSSL has yet to read: uvloop reads on while there is some."""
        return super().pending() + self._incoming.pending

    def unwrap(self) -> Any:
        while True:
            try:
                return super().unwrap()
            except ssl.SSLWantReadError:
                if not self._take_part():
                    raise

    def _take_part(self) -> bool:
        """Gives OpenSSL a part of what has arrived, or the end; returns whether there was any."""
        if part := self._arrived.read(_PART_BYTES):
            self._incoming.write(part)
            return True
        if self._arrived.eof and not self._incoming.eof:
            self._incoming.write_eof()
            return True
        return False

    def _count(self, size: int) -> None:
        """Counts bytes that brought no content; fewer than none of a record that was counted before its end."""
        now_s = time.monotonic()
        if now_s - self._counted_since_s >= _PERIOD_S:
            self._counted_since_s, self._empty_bytes = now_s, 0
        self._empty_bytes = max(0, self._empty_bytes + size)
        if self._empty_bytes > MOST_EMPTY_BYTES:
            message = f"more than {MOST_EMPTY_BYTES} bytes without content in a minute"
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, message) from None


class BoundedContext(ssl.SSLContext):
    """Speaks TLS 1.2 and 1.3, in bounds."""

    sslobject_class = BoundedObject

    def __init__(self, *_protocol: int) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.set_ciphers(_CIPHERS)
        self.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION

    def wrap_bio(self, incoming: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        inner = ssl.MemoryBIO()
        made = super().wrap_bio(inner, *args, **kwargs)
        if not isinstance(made, BoundedObject):
            raise TypeError(f"a context whose connections are {type(made).__name__}")
        return made.bound(incoming, inner)
