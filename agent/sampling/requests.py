"""Requests in flight or waiting: the proxy's own count, and what engines tell of themselves in Prometheus' format."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from agent.clock import Clock
from agent.records import Key, ProcessRecord
from agent.traffic import Traffic

METRICS_PATH: Final = "/metrics"
SCRAPE_S: Final = 5.0
_SCRAPE_LIMIT_S: Final = 2.0
_STALE_S: Final = SCRAPE_S * 2 + _SCRAPE_LIMIT_S
_AT_ONCE: Final = 16
_MAX_BYTES: Final = 4 * 2**20
_OK: Final = 200
_NOT_OFFERED: Final = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class _Told:
    """An engine's answer; None: it could not be asked."""

    at_s: float
    requests: int | None


class RequestWatch:
    """Asks every engine whose order names gauges, each few seconds, and remembers the most since the last `take`.

    Args:
        live: the processes that run now.
        traffic: what passes through the proxy.
        session: for asking.
        clock: seconds.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[ProcessRecord]],
        traffic: Traffic,
        session: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self._live = live
        self._traffic = traffic
        self._session = session
        self._clock = clock
        self._told: dict[Key, list[_Told]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            await self.ask_all()
            await asyncio.sleep(SCRAPE_S)

    async def ask_all(self) -> None:
        """Asks each once."""
        asked = [record for record in self._live() if _gauges(record) and record.ready and record.port is not None]
        self._told = {record.key: self._told.get(record.key, []) for record in asked}
        async with asyncio.TaskGroup() as group:
            for record in asked:
                group.create_task(self._ask(record))

    def take(self, records: Iterable[ProcessRecord]) -> dict[Key, int | None]:
        """The most requests at once since the last `take`, of each process; None is unknown."""
        peaks = self._traffic.take_peaks()
        return {r.key: self._take(r, peaks.get(r.instance, 0)) for r in records}

    def _take(self, record: ProcessRecord, proxied: int) -> int | None:
        if not _gauges(record):
            return proxied
        told = [t for t in self._told.get(record.key, ()) if self._clock() - t.at_s <= _STALE_S]
        self._told[record.key] = told[-1:]  # the newest counts until there is a newer one
        most = max((t.requests for t in told if t.requests is not None), default=0)
        if most or proxied:
            return max(most, proxied)
        return None if not told or any(t.requests is None for t in told) else 0

    async def _ask(self, record: ProcessRecord) -> None:
        async with self._room:
            requests = await self._scrape(f"http://127.0.0.1:{record.port}{METRICS_PATH}", _gauges(record))
        self._told.setdefault(record.key, []).append(_Told(self._clock(), requests))

    async def _scrape(self, url: str, gauges: Collection[str]) -> int | None:
        """What it tells. An engine that answers, but offers no metrics or none of these, tells nothing: 0."""
        timeout = aiohttp.ClientTimeout(total=_SCRAPE_LIMIT_S)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                if response.status in _NOT_OFFERED:
                    return 0
                if response.status != _OK:
                    return None
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MAX_BYTES:
                        return None
            return sum_gauges(body.decode(), gauges)
        except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
            return None


def sum_gauges(text: str, gauges: Collection[str]) -> int:
    """The sum of those gauges over all their labels, rounded up; 0 where there is none of them.

    Raises:
        ValueError: a line of one of them cannot be read, or holds no finite number.
    """
    # Only these lines are parsed: an engine tells a thousand others.
    lines = (line for line in text.splitlines() if line.startswith(tuple(gauges)))
    try:
        families = tuple(text_string_to_metric_families("\n".join(lines) + "\n"))
    except IndexError as error:  # the parser's other word for a line that breaks off
        raise ValueError("a gauge of requests cannot be read") from error
    values = [sample.value for family in families for sample in family.samples if sample.name in gauges]
    if not all(map(math.isfinite, values)):
        raise ValueError("a gauge of requests is no finite number")
    return math.ceil(sum(max(value, 0.0) for value in values))


def _gauges(record: ProcessRecord) -> tuple[str, ...]:
    return record.order.request_gauges if record.order is not None else ()
