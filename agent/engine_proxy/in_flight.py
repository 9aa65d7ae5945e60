"""Requests in flight to the engines, counted per instance."""

import asyncio


class InFlightRequests:
    """The proxy counts, a stopping process waits for zero, and the sampler takes the peaks."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._arrived: dict[str, int] = {}
        self._idle: dict[str, asyncio.Event] = {}

    def started(self, instance: str) -> None:
        """Counts a request; `ended` must follow."""
        count = self._count[instance] = self._count.get(instance, 0) + 1
        self._arrived[instance] = self._arrived.get(instance, 0) + 1
        if count > self._peaks.get(instance, 0):
            self._peaks[instance] = count

    def ended(self, instance: str) -> None:
        if self._count[instance] > 1:
            self._count[instance] -= 1
        else:
            del self._count[instance]
            if (event := self._idle.pop(instance, None)) is not None:
                event.set()

    def count(self, instance: str) -> int:
        return self._count.get(instance, 0)

    def take_peaks(self) -> dict[str, int]:
        """Most concurrent requests since the last call, by instance with requests."""
        taken, self._peaks = self._peaks, dict(self._count)
        return taken

    def take_arrived(self) -> dict[str, int]:
        """New requests since the last call, by instance with requests."""
        taken, self._arrived = self._arrived, {}
        return taken

    async def until_idle(self, instance: str) -> None:
        """Returns when no request is in flight. The caller sets a limit."""
        while self.count(instance):
            await self._idle.setdefault(instance, asyncio.Event()).wait()
