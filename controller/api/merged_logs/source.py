"""One log that is being read: its items arrive in a bounded queue, which the merge empties."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import aiohttp

from controller.api.agent_proxies import unreachable
from controller.api.merged_logs.frames import CaughtUp, End, FrameError, FrameReader, Item, Line, Note
from controller.store.views.logs import InstanceLog
from schemas.wire import PROXY_LOGS_PREFIX, TIMED_LOG

_HELD_CHUNKS: Final = 16  # of at most 64 KiB each, beside what the merge holds
_HELD_ITEMS: Final = 4096
_HEAD_S: Final = 10.0
_AGAIN_S: Final = 2.0
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

    Attributes:
        state: `past`: what was there is still coming; `live`: it is followed; `over`: nothing comes any more.
        held: what has come, in order.
        newest_ms: the time of the newest line; a clock that is set back does not set it back.
        away: its agent does not answer, and is asked again.
    """

    def __init__(self, log: InstanceLog, arrived: asyncio.Event, *, resumes: bool) -> None:
        self.log = log
        self.state: State = "past"
        self.held: deque[Item] = deque()
        self.newest_ms = 0
        self.away = False
        self._resumes = resumes
        self._arrived = arrived
        self._chunks: asyncio.Queue[list[Item] | None] = asyncio.Queue(_HELD_CHUNKS)
        self._last: Line | None = None
        self._ended = False

    async def run(self, session: aiohttp.ClientSession, query: Mapping[str, str]) -> None:
        """Reads until the log's end. What goes wrong becomes a note."""
        while True:
            note = await self._attempt(session, query)
            if self._ended or not self._resumes:
                break
            told = [] if self.away or note is None else [note]
            self.away = True
            await self._put([*told, CaughtUp()])
            await asyncio.sleep(_AGAIN_S)
            if self._last is not None:
                query = {"follow": "1", "since_ms": str(self._last.at_ms)}
        await self._put([note] if note is not None else [])
        await self._put(None)

    def take(self) -> bool:
        """Moves what has come to `held`; returns whether anything had."""
        taken = False
        while not self._chunks.empty() and len(self.held) < _HELD_ITEMS:
            chunk = self._chunks.get_nowait()
            taken = True
            if chunk is None:
                self.state = "over"
                continue
            for item in chunk:
                if not isinstance(item, CaughtUp):
                    self.held.append(item)
                elif self.state == "past":
                    self.state = "live"
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether nothing that has come is left."""
        return not self.held and self._chunks.empty()

    async def _attempt(self, session: aiohttp.ClientSession, query: Mapping[str, str]) -> Note | None:
        """Reads until the agent ends the answer; returns what went wrong."""
        try:
            return await self._read(session, query)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return self._unreachable()
        except FrameError as error:
            self._ended = True
            return Note("log_malformed", f"worker {self.log.source.worker!r} sent no log: {error}")

    async def _read(self, session: aiohttp.ClientSession, query: Mapping[str, str]) -> Note | None:
        source = self.log.source
        if not source.address:
            return self._unreachable()
        url = f"http://{source.address}{PROXY_LOGS_PREFIX}/{self.log.instance}"
        headers = {"Authorization": f"Bearer {source.secret}"}
        asked = {**query, "times": "1", "rank": str(self.log.rank)}
        if self._resumes:
            asked["epoch"] = str(self.log.epoch)
        async with asyncio.timeout(_HEAD_S) as limit:
            async with session.get(url, params=asked, headers=headers, timeout=_TIMEOUT) as answer:
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
            await self._put(self._new(reader.feed(chunk)))
        await self._put(list(reader.close()))
        return None

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

    async def _put(self, items: list[Item] | None) -> None:
        if items is None or items:
            await self._chunks.put(items)
            self._arrived.set()
