"""Unacknowledged sampling periods: bounded, sent oldest first, resent after a lost connection."""

import asyncio
from collections import deque
from typing import Final, NamedTuple

import msgspec

from schemas.wire import SamplePeriod

KEPT_S: Final = 6 * 3600.0
KEPT_BYTES: Final = 32 * 2**20
CHUNK_BYTES: Final = 128 * 2**10


class _Kept(NamedTuple):
    seq: int
    sampled_s: float
    body: bytes  # as JSON: a tenth of the objects' size


class Backlog:
    """A queue that sends one chunk at a time, after the controller has stored the previous one.

    So neither side holds much of a long backlog as objects, and a heartbeat never waits behind all of it.
    """

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._sent_seq: int | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, period: SamplePeriod) -> None:
        """Drops the oldest periods beyond the limits of age and size."""
        body = msgspec.json.encode(period)
        self._kept.append(_Kept(period.seq, period.sampled_s, body))
        self._bytes += len(body)
        while self._bytes > KEPT_BYTES or self._kept[0].sampled_s < period.sampled_s - KEPT_S:
            self._drop()
        self._changed.set()

    def rewind(self) -> None:
        """A new connection starts: a chunk that was sent on the old one may be lost."""
        self._sent_seq = None
        self._changed.set()

    def acknowledge(self, seq: int) -> None:
        """The controller has stored all periods up to `seq`."""
        while self._kept and self._kept[0].seq <= seq:
            self._drop()
        if self._sent_seq is not None and self._sent_seq <= seq:
            self.rewind()

    async def next(self) -> tuple[SamplePeriod, ...]:
        """Waits for the next chunk. The caller sets a limit."""
        while self._sent_seq is not None or not self._kept:
            self._changed.clear()
            await self._changed.wait()
        chunk: list[SamplePeriod] = []
        size = 0
        for kept in self._kept:
            size += len(kept.body)
            if chunk and size > CHUNK_BYTES:
                break
            chunk.append(msgspec.json.decode(kept.body, type=SamplePeriod))
        self._sent_seq = chunk[-1].seq
        return tuple(chunk)

    def _drop(self) -> None:
        self._bytes -= len(self._kept.popleft().body)
