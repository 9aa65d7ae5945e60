"""Merges logs by time: existing lines in order, followed lines as they arrive, ordered within a short interval."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from controller.api.agent_proxies import AgentProxies
from controller.api.merged_logs.frames import Line, LogItem
from controller.api.merged_logs.source import LogReading, size_of
from controller.runtime.database import DATABASE_ERRORS, is_database_trouble
from controller.store.views.logs import DeploymentLogs, InstanceLog

MOST_LOGS: Final = 64  # at once
_REFRESH_S: Final = 2.0
_GATHER_S: Final = 0.1
_BATCH: Final = 500
_BATCH_BYTES: Final = 128 * 2**10

Refresh = Callable[[], Awaitable[DeploymentLogs]]
Key = tuple[str, int, int]  # instance, rank, epoch
Emit = Callable[[list[LogItem]], Awaitable[None]]


class Merge:
    """Reads logs and emits their items in batches.

    Args:
        proxies: the agents' proxies, from which logs are read.
        query: sent to each: `tail`, `since_ms`, `follow`, `previous`.
        emit: takes the next items; it waits until the client has space for them.
        refresh: lists the logs again while they are followed: new replicas and new starts; None: these are all.
        after: the last lines that the client has; those logs continue after them.
    """

    def __init__(
        self,
        proxies: AgentProxies,
        query: Mapping[str, str],
        emit: Emit,
        refresh: Refresh | None = None,
        after: Mapping[Key, Line] = MappingProxyType({}),
    ) -> None:
        self._proxies = proxies
        self._query = query
        self._emit = emit
        self._refresh = refresh
        self._after = after
        self._arrived = asyncio.Event()
        self._readings: dict[Key, LogReading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives = refresh is not None

    async def run(self, logs: Iterable[InstanceLog]) -> None:
        """Ends with the last log; while following, once no more can start. Logs of replaced starts come first."""
        try:
            self._add(logs, self._query)
            if self._refresh is not None:
                self._start(self._refresh_all(self._refresh), "logs refresh")
            await self._merge()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _add(self, logs: Iterable[InstanceLog], query: Mapping[str, str]) -> None:
        """Reads new logs, and drops those that are read and no longer the newest of their process."""
        present = {(log.instance, log.rank, log.epoch): log for log in logs}
        self._readings = {
            key: reading for key, reading in self._readings.items() if key in present or not reading.is_done
        }
        for key, reading in self._readings.items():
            reading.old = key not in present
        for key, log in present.items():
            if (known := self._readings.get(key)) is not None:
                known.log = log  # its worker may have another address now
            elif sum(reading.state != "over" for reading in self._readings.values()) < MOST_LOGS:
                resumes, after = self._refresh is not None, self._after.get(key)
                reading = self._readings[key] = LogReading(log, self._arrived, resumes=resumes, after=after)
                self._start(reading.run(self._proxies, query), f"log of {log.instance}")

    def _start(self, work: Awaitable[None], name: str) -> None:
        async def awaited() -> None:
            try:
                await work
            finally:
                self._arrived.set()

        self._tasks.add(asyncio.create_task(awaited(), name=name))

    def _open(self) -> list[LogReading]:
        return list(self._readings.values())

    async def _refresh_all(self, refresh: Refresh) -> None:
        """Adds logs that start later, from their first line on."""
        from_start = {name: value for name, value in self._query.items() if name == "follow"} | {"since_ms": "0"}
        while self._lives:
            await asyncio.sleep(_REFRESH_S)
            try:
                logs = await refresh()
            except DATABASE_ERRORS as error:
                if not is_database_trouble(error):
                    raise
                continue
            self._lives = logs.lives
            self._add(logs.logs, from_start)
            self._arrived.set()

    async def _merge(self) -> None:
        while True:
            self._raise_failures()
            self._arrived.clear()
            for one in self._open():
                one.take()
            past = [one for one in self._open() if one.state == "past"]
            late = [one for one in past if not one.held]
            if not past:
                await self._emit_all(one for one in self._open() if one.held)
                if not self._lives and all((one.state == "over" or one.away) and one.is_empty for one in self._open()):
                    return
                if any(not one.is_empty for one in self._open()):
                    continue
                await self._arrived.wait()  # a followed log may stay quiet; the request has no deadline
                await asyncio.sleep(_GATHER_S)
            elif late:
                await self._wait_for(late)
            else:
                await self._emit_while(past)

    async def _wait_for(self, late: list[LogReading]) -> None:
        """Waits for the next item. After its own deadline a log no longer delays the other logs."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(one.stalled_at for one in late)):
                await self._arrived.wait()
        for one in late:
            if one.stalled_at <= loop.time():
                one.state = "live"

    def _raise_failures(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _emit_all(self, readings: Iterable[LogReading]) -> None:
        await self._pop(list(readings), lambda: True)

    async def _emit_while(self, past: list[LogReading]) -> None:
        """Emits in order while each log of `past` has items. A log without one may have an older line on the way."""
        await self._pop([one for one in self._open() if one.held], lambda: all(one.held for one in past))

    async def _pop(self, readings: list[LogReading], in_order: Callable[[], bool]) -> None:
        heap = [(_time(one), number) for number, one in enumerate(readings)]
        heapq.heapify(heap)
        batch: list[LogItem] = []
        size = 0
        while heap and in_order():
            at_ms, number = heap[0]
            one = readings[number]
            one.newest_ms = at_ms
            batch.append(LogItem(one.log, item := one.pop()))
            size += size_of(item)
            if one.held:
                heapq.heapreplace(heap, (_time(one), number))
            else:
                heapq.heappop(heap)
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                await self._emit(batch)
                await asyncio.sleep(0)  # emit() does not wait for a fast client, so let other requests run
                batch, size = [], 0
        if batch:
            await self._emit(batch)


def _time(reading: LogReading) -> int:
    """The time of a log's next item. An item without a time comes after the line before it."""
    item = reading.held[0]
    at_ms = item.at_ms if isinstance(item, Line) else None
    return max(reading.newest_ms, at_ms or 0)
