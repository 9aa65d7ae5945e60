"""Counts requests in flight or waiting: by the proxy, and by the engines' own Prometheus gauges."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from agent.clock import Clock
from agent.in_flight import InFlightRequests
from agent.process_records import ProcessKey, ProcessRecord
from schemas.wire import StartOrder

METRICS_PATH: Final = "/metrics"
SCRAPE_S: Final = 5.0
_SCRAPE_LIMIT_S: Final = 2.0
_STALE_S: Final = SCRAPE_S * 2 + _SCRAPE_LIMIT_S
_AT_ONCE: Final = 16
_MAX_BYTES: Final = 4 * 2**20
_OK: Final = 200
_NOT_OFFERED: Final = (404, 405, 501)
_MOST: Final = 2**31 - 1  # no engine has more requests at once


@dataclass(frozen=True, slots=True)
class Requests:
    """A process's requests since the last `take`: the most at once (None: unknown), and the number that came."""

    most: int | None
    arrived: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """What an engine says of its own queue and of the share of its KV cache in use, 0 to 1; None: unknown."""

    queued: int | None = None
    kv_use: float | None = None


UNKNOWN_PRESSURE: Final = Pressure()


@dataclass(frozen=True, slots=True)
class _Scrape:
    """An engine's answer. `requests` None: unknown, because the scrape failed."""

    at_s: float
    requests: int | None
    pressure: Pressure = UNKNOWN_PRESSURE


class RequestCounter:
    """Scrapes every engine that has request gauges, and keeps the highest count since the last `take`.

    Args:
        live: the processes that run now.
        in_flight: the proxy's counts.
        session: for the scrapes.
        clock: seconds.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[ProcessRecord]],
        in_flight: InFlightRequests,
        session: aiohttp.ClientSession,
        clock: Clock,
    ) -> None:
        self._live = live
        self._in_flight = in_flight
        self._session = session
        self._clock = clock
        self._scrapes: dict[ProcessKey, list[_Scrape]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._impossible = 0

    async def run(self) -> None:
        """Scrapes until cancelled."""
        while True:
            await self.scrape_all()
            await asyncio.sleep(SCRAPE_S)

    async def scrape_all(self) -> None:
        """Scrapes each engine once."""
        records = [record for record in self._live() if _gauges(record) and record.ready and record.port is not None]
        self._scrapes = {record.key: self._scrapes.get(record.key, []) for record in records}
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(self._scrape(record))

    def take(self, records: Iterable[ProcessRecord]) -> dict[ProcessKey, Requests]:
        """The requests since the last `take`, by process."""
        peaks, arrived = self._in_flight.take_peaks(), self._in_flight.take_arrived()
        return {r.key: Requests(self._take(r, peaks.get(r.instance, 0)), arrived.get(r.instance, 0)) for r in records}

    def pressure(self, key: ProcessKey) -> Pressure:
        """What the engine said at the last scrape, if that is fresh."""
        last = next(reversed(self._scrapes.get(key, ())), None)
        fresh = last is not None and self._clock() - last.at_s <= _STALE_S
        return last.pressure if last is not None and fresh else UNKNOWN_PRESSURE

    def take_impossible(self) -> int:
        """The number of scrapes since the last call with a figure that no engine can have."""
        taken, self._impossible = self._impossible, 0
        return taken

    def _take(self, record: ProcessRecord, proxied: int) -> int | None:
        if not _gauges(record):
            return proxied
        scrapes = [s for s in self._scrapes.get(record.key, ()) if self._clock() - s.at_s <= _STALE_S]
        self._scrapes[record.key] = scrapes[-1:]  # the newest counts until there is a newer one
        most = max((s.requests for s in scrapes if s.requests is not None), default=0)
        if most or proxied:
            return max(most, proxied)
        return None if not scrapes or any(s.requests is None for s in scrapes) else 0

    async def _scrape(self, record: ProcessRecord) -> None:
        async with self._slots:
            requests, pressure = await self._read_gauges(f"http://127.0.0.1:{record.port}{METRICS_PATH}", record)
        self._scrapes.setdefault(record.key, []).append(_Scrape(self._clock(), requests, pressure))

    async def _read_gauges(self, url: str, record: ProcessRecord) -> tuple[int | None, Pressure]:
        """The requests by its gauges, and its pressure; None: unknown.

        The requests are 0 if the engine answers without metrics or without these gauges.
        """
        timeout = aiohttp.ClientTimeout(total=_SCRAPE_LIMIT_S)
        try:
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                if response.status in _NOT_OFFERED:
                    return 0, UNKNOWN_PRESSURE
                if response.status != _OK:
                    return None, UNKNOWN_PRESSURE
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        return None, UNKNOWN_PRESSURE
            text = body.decode()
            pressure = read_pressure(text, record.order)
            return sum_gauges(text, _gauges(record)), pressure
        except ImpossibleGaugeError:
            self._impossible += 1
            return None, UNKNOWN_PRESSURE
        except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError
            return None, UNKNOWN_PRESSURE


class ImpossibleGaugeError(ValueError):
    """A gauge has a value that no engine can have."""


def sum_gauges(text: str, gauges: Collection[str]) -> int:
    """The sum of these gauges over all labels, rounded up; 0 if the text has none of them.

    Raises:
        ImpossibleGaugeError: one of them is negative, not finite, or larger than any engine's.
        ValueError: one of their lines is invalid.
    """
    values = _values(text, gauges)
    if not all(0 <= value <= _MOST for value in values) or sum(values) > _MOST:  # NaN is in no range
        raise ImpossibleGaugeError(f"a request gauge must be 0 to {_MOST}")
    return math.ceil(sum(values))


def read_pressure(text: str, order: StartOrder | None) -> Pressure:
    """The sum of the order's queue gauges and the mean of its cache gauges, over all labels.

    Raises:
        ImpossibleGaugeError: one of them has a value that no engine can have.
        ValueError: one of their lines is invalid.
    """
    queued = None if order is None else _values(text, order.queue_gauges)
    caches = None if order is None else _values(text, order.cache_gauges)
    if caches and not all(0 <= value <= 1 for value in caches):
        raise ImpossibleGaugeError("a gauge of a cache must be 0 to 1")
    return Pressure(
        queued=sum_gauges(text, order.queue_gauges) if order is not None and queued else None,
        kv_use=sum(caches) / len(caches) if caches else None,
    )


def _values(text: str, gauges: Collection[str]) -> list[float]:
    """The values of these gauges over all labels."""
    if not gauges:
        return []
    # Only these lines are parsed: an engine may have a thousand others.
    lines = (line for line in text.splitlines() if line.startswith(tuple(gauges)))
    try:
        families = tuple(text_string_to_metric_families("\n".join(lines) + "\n"))
    except IndexError as error:  # the parser raises it for a truncated line
        raise ValueError("a request gauge is invalid") from error
    return [sample.value for family in families for sample in family.samples if sample.name in gauges]


def _gauges(record: ProcessRecord) -> tuple[str, ...]:
    return record.order.request_gauges if record.order is not None else ()
