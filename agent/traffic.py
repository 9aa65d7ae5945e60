"""Requests on their way to the engines, counted per instance: who stops gracefully waits for them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Traffic:
    """The count, shared by the proxy (which enters) and the supervisor (which waits)."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._peaks: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    @contextmanager
    def enter(self, instance: str) -> Iterator[None]:
        """Counts one request while it lasts."""
        self._in_flight[instance] += 1
        self._peaks[instance] = max(self._peaks.get(instance, 0), self._in_flight[instance])
        try:
            yield
        finally:
            self._in_flight[instance] -= 1
            if self._in_flight[instance] == 0:
                del self._in_flight[instance]
                if (event := self._waiting.pop(instance, None)) is not None:
                    event.set()

    def count(self, instance: str) -> int:
        """Requests in flight to an instance."""
        return self._in_flight.get(instance, 0)

    def take_peaks(self) -> dict[str, int]:
        """The most requests that were in flight at once since the last call, by instance; none of those without any."""
        taken, self._peaks = self._peaks, dict(self._in_flight)
        return taken

    async def idle(self, instance: str) -> None:
        """Returns when no request is in flight; the caller sets the limit."""
        while self.count(instance):
            await self._waiting.setdefault(instance, asyncio.Event()).wait()
