"""A transport in memory, strict as uvloop's: what it is asked after its end, or twice, is an error."""

import asyncio
from collections.abc import Iterable
from typing import Any


class MemoryTransport(asyncio.Transport):
    """Keeps what is written.

    Attributes:
        reading: whether it may be read from.
        full: a write pauses its protocol before it returns, as asyncio's transports do.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.protocol = protocol
        self.written = b""
        self.reading = True
        self.full = False
        self.eof = False
        self.aborted = False
        self.closing = False
        self.lost = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.eof, "write after write_eof"
        assert not self.lost
        if not self.closing:
            self.written += bytes(data)
            if self.full:
                self.block()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.lost
        self.eof = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    # What the network does

    def receive(self, data: bytes) -> None:
        if self.reading and not self.closing:
            self.protocol.data_received(data)

    def receive_eof(self) -> None:
        if self.reading and not self.closing and not self.protocol.eof_received():
            self.close()

    def lose(self) -> None:
        if not self.lost:
            self.closing = self.lost = True
            self.protocol.connection_lost(None)

    def block(self) -> None:
        if not self.closing:
            self.protocol.pause_writing()

    def unblock(self) -> None:
        if not self.closing:
            self.protocol.resume_writing()
