"""A context whose connections are bounded in what OpenSSL does by itself: long handshakes and requests for new keys.

In TLS 1.3 a peer may ask for new keys in each record, of 27 bytes. OpenSSL sets no bound, and obeys thousands in one
read, while nothing else runs in the loop. So they are counted as they come, and beyond the bound the bytes that are
left are dropped: the read ends, and with it the connection. In TLS 1.2 a new handshake is refused.
"""

import _ssl
import ssl
import time
from typing import Any, Final, Self

MOST_KEY_UPDATES: Final = 32  # in a minute
MOST_HANDSHAKE_BYTES: Final = 64 * 1024
_PERIOD_S: Final = 60.0
_CIPHERS: Final = (
    "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: none with CBC, whose padding has leaked; those of 1.3 stay
)
_HANDSHAKE: Final = 22  # a record's type
_KEY_UPDATE: Final = 24  # a message's


class BoundedObject(ssl.SSLObject):
    """One connection."""

    _incoming: ssl.MemoryBIO
    _handshake_bytes = 0
    _key_updates = 0
    _counted_since_s = float("-inf")

    def bound(self, incoming: ssl.MemoryBIO) -> Self:
        """Says where the peer's bytes are until they are read."""
        self._incoming = incoming
        return self

    def do_handshake(self) -> None:
        """As of each `SSLObject`.

        Raises:
            SSLError: the peer's part is longer than any real one.
        """
        arrived = self._incoming.pending
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            self._handshake_bytes += arrived
            if self._handshake_bytes > MOST_HANDSHAKE_BYTES:
                raise ssl.SSLError(
                    ssl.SSL_ERROR_SSL, f"a handshake of more than {MOST_HANDSHAKE_BYTES} bytes"
                ) from None
            raise

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 - the name of the base
        """As of each `SSLObject`.

        Raises:
            SSLError: the peer asked for new keys too often.
        """
        try:
            return super().read(len, buffer)
        except ssl.SSLWantReadError:
            if self._key_updates > MOST_KEY_UPDATES:
                message = f"more than {MOST_KEY_UPDATES} requests for new keys in a minute"
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, message) from None
            raise

    def count_key_update(self) -> None:
        """Counts one more. Beyond the bound nothing is left to read, else OpenSSL would go on within this very read."""
        now_s = time.monotonic()
        if now_s - self._counted_since_s >= _PERIOD_S:
            self._counted_since_s, self._key_updates = now_s, 0
        self._key_updates += 1
        if self._key_updates > MOST_KEY_UPDATES:
            self._incoming.read()


class BoundedContext(ssl.SSLContext):
    """Speaks TLS 1.2 and 1.3, in bounds."""

    sslobject_class = BoundedObject

    def __init__(self, *_protocol: int) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.set_ciphers(_CIPHERS)
        self.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        # Set as it is in C: the library's own wrapper makes enumerations of each record's numbers.
        _ssl._SSLContext._msg_callback.__set__(self, _note)  # type: ignore[attr-defined]  # noqa: SLF001 - as it says

    def wrap_bio(self, incoming: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """As of each context."""
        made = super().wrap_bio(incoming, *args, **kwargs)
        return made.bound(incoming) if isinstance(made, BoundedObject) else made


def _note(connection: object, direction: str, _version: int, record: int, message: int, _data: bytes) -> None:
    """OpenSSL calls it with each message, and with each record's head."""
    asks = message == _KEY_UPDATE and record == _HANDSHAKE and direction == "read"
    if asks and isinstance(connection, BoundedObject):
        connection.count_key_update()
