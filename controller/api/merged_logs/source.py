"""One log that is being read. It holds a bounded number of bytes, whether the merge has looked at them or not.

It is also read no faster than its items are worth: a byte of an agent can be an item, which costs as much as a line.
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
STALLED_S: Final = 10.0  # a log that sends nothing for so long holds the others up no longer
_ITEM_BYTES: Final = 192  # what an item takes beside its text
_SLICE_BYTES: Final = 8 * 2**10  # read in one turn of the loop, within some milliseconds whatever is in it
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
        log: which.
        arrived: set whenever something has come.
        resumes: a followed log is opened again after its agent was away, at the line at which it broke off.
        after: the last line that the client has; those after it are read.

    Attributes:
        state: `past`: what was there is still coming; `live`: it is followed; `over`: nothing comes any more.
        held: what has come, in order.
        held_bytes: what has come and is not emitted yet.
        newest_ms: the time of the newest line; a clock that is set back does not set it back.
        stalled_at: when it holds the others up no longer, on the loop's clock; what comes moves it.
        away: its agent does not answer, and is asked again.
        old: another start has followed, or its instance is gone: its agent is not asked for ever.
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
        self._come: deque[Item | None] = deque()  # not looked at by the merge yet; None: the end
        self._room = asyncio.Event()
        self._rate = Rate(asyncio.get_running_loop().time(), _BURST_BYTES, _BYTES_PER_S)  # of all its answers
        self._last = after
        self._ended = False

    async def run(self, proxies: AgentProxies, query: Mapping[str, str]) -> None:
        """Reads until the log's end. What goes wrong becomes a note."""
        tries = 0
        while True:
            if self._last is not None:
                query = {"follow": "1", "since_ms": str(self._last.at_ms)}
            note = await self._attempt(proxies, query)
            tries = tries + 1 if self.away else 0
            if self._ended or not self._resumes or (self.old and tries >= _TRIES_OF_OLD):
                break
            told = [] if self.away or note is None else [note]
            self.away = True
            await self._put([*told, CaughtUp()])
            await asyncio.sleep(_AGAIN_S)
        await self._put([note, None] if note is not None else [None])

    def take(self) -> None:
        """Moves what has come to `held`."""
        while self._come:
            item = self._come.popleft()
            if item is None:
                self.state = "over"
            elif not isinstance(item, CaughtUp):
                self.held.append(item)
            else:
                self._free(item)
                if self.state == "past":
                    self.state = "live"

    def pop(self) -> Item:
        """Takes the oldest item out of `held`; its bytes are free for what comes."""
        item = self.held.popleft()
        self._free(item)
        return item

    def _free(self, item: Item) -> None:
        self.held_bytes -= size_of(item)
        self._room.set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing that has come is left."""
        return not self.held and not self._come

    @property
    def is_done(self) -> bool:
        """Whether all has come and is emitted."""
        return self.state == "over" and self.is_empty

    async def _attempt(self, proxies: AgentProxies, query: Mapping[str, str]) -> Note | None:
        """Reads until the agent ends the answer; returns what went wrong."""
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
        asked = {**query, "times": "1", "rank": str(self.log.rank)}
        if self._resumes:
            asked["epoch"] = str(self.log.epoch)
        async with asyncio.timeout(_HEAD_S) as limit:
            async with ask(proxies, source, path, asked, timeout=_TIMEOUT) as answer:
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
            self._ended = True  # without positions it cannot go on where it broke off
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
        """Reads some of an answer once it may; others have their turn in any case."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rate.take(now(), 0.0))
        self._rate.take(now(), len(text) + _ITEM_BYTES * text.count(b"\n"))
        await self._put(self._new(reader.feed(text)))

    def _new(self, items: Iterable[Item]) -> list[Item]:
        """Those that have not come before the log broke off."""
        found: list[Item] = []
        for item in items:
            self.away = False
            if isinstance(item, Line) and item.position is not None:
                if self._last is not None and item.position <= (self._last.position or 0):
                    continue
                self._last = item
            self._ended = self._ended or isinstance(item, End)
            found.append(item)
        return found

    def _unreachable(self) -> Note:
        return Note("worker_unreachable", str(unreachable(self.log.source)))

    async def _put(self, items: Sequence[Item | None]) -> None:
        """Adds items once there is room. One chunk may exceed the bound: a line of it may be longer than the rest."""
        while self.held_bytes >= HELD_BYTES:
            self._room.clear()
            await self._room.wait()
        if items:
            self.held_bytes += sum(map(size_of, items))
            self._come.extend(items)
            self.stalled_at = asyncio.get_running_loop().time() + STALLED_S
            self._arrived.set()


async def _await_end(answer: aiohttp.ClientResponse) -> None:
    """Lets an agent finish an answer that says no more, so that its connection can be used again."""
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_END_S):
            await answer.content.readany()


def size_of(item: Item | None) -> int:
    """How many bytes an item counts: what it takes at least."""
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
