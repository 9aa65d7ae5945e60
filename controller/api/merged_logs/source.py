"""One log that is being read, bounded in bytes held and in bytes per second.

The rate counts items too: an agent may send items of one byte, and each costs as much as a line.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import aiohttp

from controller.api.agent_proxies import AgentProxies, ask, unreachable
from controller.api.merged_logs.frames import CaughtUp, End, FrameError, FrameReader, Item, Line, Note
from controller.store.views.logs import InstanceLog
from http1.rate import Rate
from schemas.wire import PROXY_LOGS_PREFIX, TIMED_LOG

HELD_BYTES: Final = 256 * 2**10  # of a log; a merge of 64 logs holds 16 MiB
STALLED_S: Final = 10.0  # a log that is silent for longer no longer delays the other logs
_ITEM_BYTES: Final = 192  # memory of an item besides its text
_SLICE_BYTES: Final = 8 * 2**10  # read in one turn of the loop, within some milliseconds for any content
_BURST_BYTES: Final = 48 * 2**20  # of text and items of a log at once: 16 MiB of lines of usual length
_BYTES_PER_S: Final = 4 * 2**20  # beyond that: 20,000 empty lines, which take about a tenth of a core
_HEAD_S: Final = 10.0
_END_S: Final = 1.0
_AGAIN_S: Final = 2.0
_TRIES_OF_OLD: Final = 30  # for the rest of a log that another start has followed
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=None)  # a log may stay quiet
_OK: Final = 200
_NOT_FOUND: Final = 404
State = Literal["past", "live", "over"]


class LogReading:
    """One log.

    Args:
        log: its instance, rank and agent.
        arrived: set for each arrival.
        resumes: a followed log is opened again after its agent was away, at the line at which it broke off.
        after: the last line that the client has; reading starts after it.

    Attributes:
        state: `past`: existing lines still arrive; `live`: it is followed; `over`: it has ended.
        held: arrived items, in order.
        held_bytes: size of the items that are not emitted yet.
        newest_ms: the time of the newest line. It never decreases, even if the clock is set back.
        stalled_at: when it no longer delays other logs, on the loop's clock; each arrival moves it.
        away: its agent does not answer, and is polled.
        old: another start has followed, or its instance is gone, so polling of its agent ends.
    """

    def __init__(self, log: InstanceLog, arrived: asyncio.Event, *, resumes: bool, after: Line | None = None) -> None:
        self.log = log
        self.state: State = "past"
        self.held: deque[Item] = deque()
        self.held_bytes = 0
        self.newest_ms = 0
        self.stalled_at = asyncio.get_running_loop().time() + STALLED_S
        self.away = self.old = False
        self._resumes = resumes
        self._arrived = arrived
        self._arrivals: deque[Item | None] = deque()  # not taken by the merge yet; None: the end
        self._space = asyncio.Event()
        self._rate = Rate(asyncio.get_running_loop().time(), _BURST_BYTES, _BYTES_PER_S)  # bounds all its answers
        self._last = after
        self._ended = False

    async def run(self, proxies: AgentProxies, query: Mapping[str, str]) -> None:
        """Reads until the log's end. Failures become notes."""
        tries = 0
        while True:
            if self._last is not None:
                query = {"follow": "1", "since_ms": str(self._last.at_ms)}
            note = await self._attempt(proxies, query)
            tries = tries + 1 if self.away else 0
            if self._ended or not self._resumes or (self.old and tries >= _TRIES_OF_OLD):
                break
            notes = [] if self.away or note is None else [note]
            self.away = True
            await self._put([*notes, CaughtUp()])
            await asyncio.sleep(_AGAIN_S)
        await self._put([note, None] if note is not None else [None])

    def take(self) -> None:
        """Moves arrivals to `held`."""
        while self._arrivals:
            item = self._arrivals.popleft()
            if item is None:
                self.state = "over"
            elif not isinstance(item, CaughtUp):
                self.held.append(item)
            else:
                self._free(item)
                if self.state == "past":
                    self.state = "live"

    def pop(self) -> Item:
        """Takes the oldest item out of `held`, and frees its bytes."""
        item = self.held.popleft()
        self._free(item)
        return item

    def _free(self, item: Item) -> None:
        self.held_bytes -= size_of(item)
        self._space.set()

    @property
    def is_empty(self) -> bool:
        return not self.held and not self._arrivals

    @property
    def is_done(self) -> bool:
        return self.state == "over" and self.is_empty

    async def _attempt(self, proxies: AgentProxies, query: Mapping[str, str]) -> Note | None:
        """Reads until the agent ends the answer; returns a note of a failure."""
        try:
            return await self._read(proxies, query)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return self._unreachable()
        except FrameError as error:
            self._ended = True
            return Note("log_malformed", f"worker {self.log.source.worker!r} sent no log: {error}")

    async def _read(self, proxies: AgentProxies, query: Mapping[str, str]) -> Note | None:
        source = self.log.source
        if not source.address:
            return self._unreachable()
        path = f"{PROXY_LOGS_PREFIX}/{self.log.instance}"
        query = {**query, "times": "1", "rank": str(self.log.rank)}
        if self._resumes:
            query["epoch"] = str(self.log.epoch)
        async with asyncio.timeout(_HEAD_S) as limit:
            async with ask(proxies, source, path, query, timeout=_TIMEOUT) as answer:
                limit.reschedule(None)
                return await self._relay(answer)

    async def _relay(self, answer: aiohttp.ClientResponse) -> Note | None:
        worker = self.log.source.worker
        if answer.status == _NOT_FOUND:
            return None if self._resumes else Note("no_log", f"worker {worker!r} keeps no log of {self.log.instance!r}")
        if answer.status != _OK:
            return self._unreachable()
        timed = answer.content_type == TIMED_LOG
        reader = FrameReader(timed=timed)
        if not timed:
            self._ended = True  # without positions it cannot resume where it broke off
            text = (
                f"the agent of worker {worker!r} is too old to tell times; its lines come without, and not by `since`"
            )
            await self._put([Note("no_times", text), CaughtUp()])
        async for chunk in answer.content.iter_any():
            for at in range(0, len(chunk), _SLICE_BYTES):
                await self._read_slice(reader, chunk[at : at + _SLICE_BYTES])
                if reader.ended:
                    await _await_end(answer)
                    return None
        await self._put(list(reader.close()))
        return None

    async def _read_slice(self, reader: FrameReader, text: bytes) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rate.take(now(), 0.0))  # also for 0 seconds: other requests run in between
        self._rate.take(now(), len(text) + _ITEM_BYTES * text.count(b"\n"))
        await self._put(self._new(reader.feed(text)))

    def _new(self, items: Iterable[Item]) -> list[Item]:
        """Drops the lines that arrived before the log broke off."""
        new: list[Item] = []
        for item in items:
            self.away = False
            if isinstance(item, Line) and item.position is not None:
                if self._last is not None and item.position <= (self._last.position or 0):
                    continue
                self._last = item
            self._ended = self._ended or isinstance(item, End)
            new.append(item)
        return new

    def _unreachable(self) -> Note:
        return Note("worker_unreachable", str(unreachable(self.log.source)))

    async def _put(self, items: Sequence[Item | None]) -> None:
        """Adds items once there is space. One chunk may exceed the bound, since it may hold one very long line."""
        while self.held_bytes >= HELD_BYTES:
            self._space.clear()
            await self._space.wait()
        if items:
            self.held_bytes += sum(map(size_of, items))
            self._arrivals.extend(items)
            self.stalled_at = asyncio.get_running_loop().time() + STALLED_S
            self._arrived.set()


async def _await_end(answer: aiohttp.ClientResponse) -> None:
    """Lets an agent finish its answer after the last frame, so that the connection is reused."""
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_END_S):
            await answer.content.readany()


def size_of(item: Item | None) -> int:
    match item:
        case None:
            return 0
        case Line(text):
            return _ITEM_BYTES + len(text)
        case CaughtUp():
            return _ITEM_BYTES
        case End():
            return _ITEM_BYTES + len(item.message) + len(item.reason or "")
        case _:
            return _ITEM_BYTES + len(item.message)
