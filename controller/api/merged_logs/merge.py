"""Merges logs by time. What was there comes in order, what is followed as it arrives, in order within a moment."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import aiohttp

from controller.api.merged_logs.frames import Item, Line
from controller.api.merged_logs.source import LogReading
from controller.runtime.database import is_database_trouble
from controller.store.views.logs import DeploymentLogs, InstanceLog

MOST_LOGS: Final = 64  # at once
_STALLED_S: Final = 10.0  # a log that sends nothing for so long holds the others up no longer
_REFRESH_S: Final = 2.0
_GATHER_S: Final = 0.1
_BATCH: Final = 500

Look = Callable[[], Awaitable[DeploymentLogs]]


class Told(NamedTuple):
    """An item of one log."""

    log: InstanceLog
    item: Item


Emit = Callable[[list[Told]], Awaitable[None]]


class Merge:
    """Reads logs and emits their items in batches.

    Args:
        session: to the agents.
        query: what is asked of each: `tail`, `since_ms`, `follow`, `previous`.
        emit: takes the next items; it waits until the client has room.
        look: finds the logs again while they are followed: new replicas, and new starts; None: these are all.
    """

    def __init__(
        self, session: aiohttp.ClientSession, query: Mapping[str, str], emit: Emit, look: Look | None = None
    ) -> None:
        self._session = session
        self._query = query
        self._emit = emit
        self._look = look
        self._arrived = asyncio.Event()
        self._readings: dict[tuple[str, int, int], LogReading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives = look is not None

    async def run(self, logs: Iterable[InstanceLog]) -> None:
        """Ends with the last log; while following, once no more can come."""
        try:
            self._add(logs, self._query)
            if self._look is not None:
                self._begin(self._look_again(self._look), "logs look")
            await self._merge()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _add(self, logs: Iterable[InstanceLog], query: Mapping[str, str]) -> None:
        for log in logs:
            key = (log.instance, log.rank, log.epoch)
            if (known := self._readings.get(key)) is not None:
                known.log = log  # its worker may have another address now
            elif sum(one.state != "over" for one in self._open()) < MOST_LOGS:
                one = self._readings[key] = LogReading(log, self._arrived, resumes=self._look is not None)
                self._begin(one.run(self._session, query), f"log of {log.instance}")

    def _begin(self, work: Awaitable[None], name: str) -> None:
        async def awaited() -> None:
            try:
                await work
            finally:
                self._arrived.set()

        task = asyncio.create_task(awaited(), name=name)
        self._tasks.add(task)

    def _open(self) -> list[LogReading]:
        return list(self._readings.values())

    async def _look_again(self, look: Look) -> None:
        """Adds what starts meanwhile, from its first line on."""
        whole = {name: value for name, value in self._query.items() if name == "follow"} | {"since_ms": "0"}
        while self._lives:
            await asyncio.sleep(_REFRESH_S)
            try:
                found = await look()
            except Exception as error:
                if not is_database_trouble(error):
                    raise
                continue
            self._lives = found.lives
            self._add(found.logs, whole)
            self._arrived.set()

    async def _merge(self) -> None:
        stalled_at = asyncio.get_running_loop().time() + _STALLED_S
        while True:
            self._raise_failures()
            self._arrived.clear()
            if sum(one.take() for one in self._open()):
                stalled_at = asyncio.get_running_loop().time() + _STALLED_S
            past = [one for one in self._open() if one.state == "past"]
            if not past:
                await self._emit_all(one for one in self._open() if one.held)
                if not self._lives and all((one.state == "over" or one.away) and one.is_empty for one in self._open()):
                    return
                if any(one.held or not one.is_empty for one in self._open()):
                    continue
                await self._arrived.wait()  # a followed log may stay quiet; the request has no deadline
                await asyncio.sleep(_GATHER_S)
            elif all(one.held for one in past):
                await self._emit_while(past)
            elif not await self._arrives(stalled_at):
                for one in past:
                    one.state = "live" if not one.held else one.state
                stalled_at = asyncio.get_running_loop().time() + _STALLED_S

    async def _arrives(self, limit: float) -> bool:
        try:
            async with asyncio.timeout_at(limit):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _raise_failures(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _emit_all(self, readings: Iterable[LogReading]) -> None:
        await self._pop(list(readings), lambda: True)

    async def _emit_while(self, past: list[LogReading]) -> None:
        """Emits in order for as long as each log that is not read to its end yet has something."""
        await self._pop([one for one in self._open() if one.held], lambda: all(one.held for one in past))

    async def _pop(self, readings: list[LogReading], go_on: Callable[[], bool]) -> None:
        heap = [(_time(one), number) for number, one in enumerate(readings)]
        heapq.heapify(heap)
        batch: list[Told] = []
        while heap and go_on():
            at_ms, number = heap[0]
            one = readings[number]
            one.newest_ms = at_ms
            batch.append(Told(one.log, one.held.popleft()))
            if one.held:
                heapq.heapreplace(heap, (_time(one), number))
            else:
                heapq.heappop(heap)
            if len(batch) >= _BATCH:
                await self._emit(batch)
                await asyncio.sleep(0)  # a fast client never makes it wait; others have their turn
                batch = []
        if batch:
            await self._emit(batch)


def _time(reading: LogReading) -> int:
    """When the next item of a log is due. What has no time comes after the line before it."""
    item = reading.held[0]
    at_ms = item.at_ms if isinstance(item, Line) else None
    return max(reading.newest_ms, at_ms or 0)
