"""Counts requests, by the proxy and by the engines' own gauges."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from agent.clock import Clock
from agent.engine_proxy.in_flight import InFlightRequests
from agent.processes.probe import request_engine
from agent.sampling.engine_metrics import (
    ImpossibleGaugeError,
    Pressure,
    names_of,
    read_pressure,
    read_samples,
    read_tokens,
    sum_gauges,
)
from agent.state.process_records import ProcessKey, ProcessRecord
from http1.fetch import FetchError

METRICS_PATH: Final = "/metrics"
SCRAPE_S: Final = 5.0
_SCRAPE_LIMIT_S: Final = 2.0
_STALE_S: Final = SCRAPE_S * 2 + _SCRAPE_LIMIT_S
_AT_ONCE: Final = 16
_MAX_BYTES: Final = 4 * 2**20
_OK: Final = 200
_NOT_OFFERED: Final = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Requests:
    """A process's requests since the last `take`: the most at once (None: unknown), and new ones."""

    most: int | None
    arrived: int


UNKNOWN_PRESSURE: Final = Pressure()


@dataclass(frozen=True, slots=True)
class _Scrape:
    """An engine's metrics. `requests` None: the scrape failed."""

    at_s: float
    requests: int | None
    pressure: Pressure = UNKNOWN_PRESSURE
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The sum of an engine's counters, since when it is unchanged, and its last reading."""

    total: float
    since_s: float
    at_s: float


class RequestCounter:
    """Scrapes engines with request gauges, and keeps the highest count since the last `take`."""

    def __init__(
        self,
        live: Callable[[], Iterable[ProcessRecord]],
        in_flight: InFlightRequests,
        clock: Clock,
    ) -> None:
        self._live = live
        self._in_flight = in_flight
        self._clock = clock
        self._scrapes: dict[ProcessKey, list[_Scrape]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._impossible = 0
        self._tokens: dict[ProcessKey, _Tokens] = {}
        self._probed: dict[ProcessKey, int] = {}

    def tokens_still(self, key: ProcessKey) -> float | None:
        """Seconds without a change of its counters of tokens, up to the last scrape; None if unknown."""
        tokens = self._tokens.get(key)
        if tokens is None or self._clock() - tokens.at_s > _STALE_S:
            return None
        return tokens.at_s - tokens.since_s

    def tokens_moved(self, key: ProcessKey) -> float | None:
        """Seconds since its counters of tokens last changed, or were first read; None: never."""
        tokens = self._tokens.get(key)
        return None if tokens is None else self._clock() - tokens.since_s

    @contextmanager
    def probing(self, key: ProcessKey) -> Iterator[None]:
        """Wraps a request of the agent itself, which does not count."""
        self._probed[key] = self._probed.get(key, 0) + 1
        try:
            yield
        finally:
            self._probed[key] -= 1
            if not self._probed[key]:
                del self._probed[key]

    async def run(self) -> None:
        while True:
            await self.scrape_all()
            await asyncio.sleep(SCRAPE_S)

    async def scrape_all(self) -> None:
        records = [record for record in self._live() if _gauges(record) and record.ready and record.port is not None]
        self._scrapes = {record.key: self._scrapes.get(record.key, []) for record in records}
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key in self._scrapes}
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(self._scrape(record))

    def take(self, records: Iterable[ProcessRecord]) -> dict[ProcessKey, Requests]:
        """Requests since the last `take`, by process."""
        peaks, arrived = self._in_flight.take_peaks(), self._in_flight.take_arrived()
        return {r.key: Requests(self._take(r, peaks.get(r.instance, 0)), arrived.get(r.instance, 0)) for r in records}

    def pressure(self, key: ProcessKey) -> Pressure:
        """Of the last scrape, if that is fresh."""
        last = next(reversed(self._scrapes.get(key, ())), None)
        fresh = last is not None and self._clock() - last.at_s <= _STALE_S
        return last.pressure if last is not None and fresh else UNKNOWN_PRESSURE

    def take_impossible(self) -> int:
        """The number of scrapes with impossible figures since the last call."""
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
        key = record.key
        async with self._slots:
            before = self._probed.get(key, 0)
            scrape = await self._read_gauges(record.port or 0, record)  # processes without a port are not scraped
        own = max(before, self._probed.get(key, 0))
        if scrape.requests:
            scrape = replace(scrape, requests=max(scrape.requests - own, 0))
        self._scrapes.setdefault(key, []).append(scrape)
        if scrape.tokens is not None:
            last = self._tokens.get(key)
            moved = last is None or last.total != scrape.tokens
            since = scrape.at_s if last is None or moved else last.since_s
            self._tokens[key] = _Tokens(scrape.tokens, since, scrape.at_s)

    async def _read_gauges(self, port: int, record: ProcessRecord) -> _Scrape:
        """`requests` is 0 if the engine answers without metrics or without these gauges."""
        try:
            head, body = await request_engine(port, METRICS_PATH, limit_s=_SCRAPE_LIMIT_S, most_bytes=_MAX_BYTES + 1)
            if head.status in _NOT_OFFERED:
                return _Scrape(self._clock(), 0)
            if head.status != _OK or len(body) > _MAX_BYTES:
                return _Scrape(self._clock(), None)
            samples = read_samples(body.decode(), names_of(record.order))
            requests, pressure = sum_gauges(samples, _gauges(record)), read_pressure(samples, record.order)
            return _Scrape(self._clock(), requests, pressure, read_tokens(samples, record.order))
        except ImpossibleGaugeError:
            self._impossible += 1
        except (FetchError, ValueError):
            pass
        return _Scrape(self._clock(), None)


def _gauges(record: ProcessRecord) -> tuple[str, ...]:
    return record.order.request_gauges if record.order is not None else ()
