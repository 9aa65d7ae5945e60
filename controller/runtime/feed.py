"""The change feed: the database's notifications as hints, without reading rows. A hint is a wake-up, never truth."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS, Connect
from controller.runtime.outcome import Backoff

log = structlog.get_logger(__name__)

EVERYTHING = "*"
CHANNEL = "gpuward"
_CLOSE_LIMIT_S = 1.0


class FeedLostError(Exception):
    """The listening connection closed or does not answer."""


_LOST: tuple[type[Exception], ...] = (*DATABASE_ERRORS, FeedLostError)


def parse_hint(payload: str) -> list[tuple[str, str | None]] | None:
    """Returns hints `(kind, id)`: of each id in "kind id id", or with id None for "kind *". None if malformed."""
    kind, *ids = payload.split(" ")
    if not kind.isidentifier() or not ids or not all(ids):
        return None
    if ids == [EVERYTHING]:
        return [(kind, None)]
    if EVERYTHING in ids:
        return None
    return [(kind, id_) for id_ in ids]


class ChangeFeed:
    """Listens on a connection of its own and hands every change to `on_hint`.

    At each connect, the first included, it calls `on_hint("*", None)`: anything may have changed. It probes the
    connection, because otherwise an idle connection cannot be distinguished from a dead one.

    Args:
        on_hint: `(kind, id)`; kind "*" is all kinds, id None all of the kind. Must not raise.
        probe_s: between probes.
        probe_timeout_s: limit on connecting, LISTEN and each probe.
        backoff: delays between attempts to connect.
    """

    def __init__(
        self,
        connect: Connect,
        on_hint: Callable[[str, str | None], None],
        clock: Clock,
        *,
        rng: random.Random | None = None,
        channel: str = CHANNEL,
        probe_s: float = 3.0,
        probe_timeout_s: float = 3.0,
        backoff: Backoff | None = None,
    ) -> None:
        self._connect = connect
        self._on_hint = on_hint
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter only, no secret
        self._channel = channel
        self._probe_s = probe_s
        self._probe_timeout_s = probe_timeout_s
        self._backoff = backoff or Backoff(base_s=0.1, max_s=5.0)
        self._failures = 0
        self._connected_at: float | None = None
        self._probed_at: float | None = None

    @property
    def connected_at(self) -> float | None:
        """Monotonic time since which the connection listens; None without a connection."""
        return self._connected_at

    @property
    def last_probe_age_s(self) -> float | None:
        """Seconds since the last successful probe; None without a connection."""
        return None if self._probed_at is None else self._clock.monotonic() - self._probed_at

    async def run(self) -> None:
        """Listens until cancelled; reconnects after every failure."""
        while True:
            try:
                await self._listen()
            except _LOST as error:
                log.warning("change feed lost", error=str(error) or type(error).__name__, attempt=self._failures + 1)
            self._failures += 1
            await self._clock.sleep(self._backoff.delay_s(self._failures, self._rng))

    async def _listen(self) -> None:
        """Connects, then probes until the connection fails; always raises."""
        async with asyncio.timeout(self._probe_timeout_s):
            connection = await self._connect()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            async with asyncio.timeout(self._probe_timeout_s):
                await connection.add_listener(self._channel, self._notified)
            self._connected_at = self._probed_at = self._clock.monotonic()
            self._failures = 0
            log.info("change feed connected", channel=self._channel)
            # After LISTEN: earlier commits are read now, later ones are notified.
            self._on_hint(EVERYTHING, None)
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._probe_s):
                        await ended.wait()
                if ended.is_set():
                    raise FeedLostError("the connection was closed")
                async with asyncio.timeout(self._probe_timeout_s):
                    await connection.fetchval("SELECT 1")
                self._probed_at = self._clock.monotonic()
        finally:
            self._connected_at = self._probed_at = None
            await _close(connection)

    def _notified(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        hints = parse_hint(payload)
        if hints is None:
            log.warning("malformed hint, resyncing everything", payload=payload[:200])
            hints = [(EVERYTHING, None)]
        for kind, id_ in hints:
            self._on_hint(kind, id_)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=_CLOSE_LIMIT_S)
    except DATABASE_ERRORS:  # the server does not answer
        connection.terminate()
