"""Reads a WebSocket of aiohttp no faster than its bytes are allowed.

A receiver of messages can hold back a client that sends many. Frames that end no message are read without that: a
message's empty fragments go on for ever, and no receiver sees one of them.
"""

import asyncio
from typing import Any

from aiohttp import web

from controller.runtime.rate import Rate


def pace(request: web.Request, *, burst_bytes: int, bytes_per_s: float) -> None:
    """From now on bytes beyond the bounds are left to the kernel for a while, which holds the client back.

    Args:
        request: whose WebSocket is prepared.
        burst_bytes: at once; at least the largest message, or each such one comes late.
        bytes_per_s: beyond that.
    """
    protocol: Any = request.protocol
    if protocol is not None and protocol._payload_parser is not None:  # noqa: SLF001 - there is no other way
        protocol._payload_parser = _Paced(protocol, burst_bytes, bytes_per_s)  # noqa: SLF001


class _Paced:
    """Stands before the parser of one connection."""

    def __init__(self, protocol: Any, burst_bytes: int, bytes_per_s: float) -> None:
        self._protocol = protocol
        self._parser = protocol._payload_parser  # noqa: SLF001
        self._loop = asyncio.get_running_loop()
        self._rate = Rate(self._loop.time(), burst_bytes, bytes_per_s)
        self._held: asyncio.TimerHandle | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        wait_s = self._rate.take(self._loop.time(), len(data))
        if wait_s and self._held is None:
            # Of aiohttp's two holds on reading the one that a full queue of messages does not use.
            self._protocol._pause_reading_for_buffer()  # noqa: SLF001
            self._held = self._loop.call_later(wait_s, self._go_on)
        fed: tuple[bool, bytes] = self._parser.feed_data(data)
        return fed

    def feed_eof(self) -> None:
        if self._held is not None:
            self._held.cancel()
        self._parser.feed_eof()

    def _go_on(self) -> None:
        self._held = None
        self._protocol._resume_reading_for_buffer()  # noqa: SLF001
