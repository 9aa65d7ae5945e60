"""For how long each GPU was seen to do nothing. Where it was not seen, it may have done something."""

from collections.abc import Iterable
from typing import Final

from agent.clock import Clock
from schemas.wire import DeviceFacts

BUSY_PERCENT: Final = 5.0
_SEEN_EVERY_S: Final = 5.0


class IdleGpus:
    """Fed with each sample of the GPUs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def note(self, gpus: Iterable[DeviceFacts]) -> None:
        """Notes a reading. A gap between two readings counts as work."""
        now = self._clock()
        seen: dict[str, float] = {}
        for gpu in gpus:
            if gpu.utilization is None:
                continue
            seen[gpu.uuid] = now
            gap = now - self._seen.get(gpu.uuid, now) > _SEEN_EVERY_S
            if gpu.utilization >= BUSY_PERCENT or gap or gpu.uuid not in self._seen:
                self._since[gpu.uuid] = now
        self._seen = seen

    def seconds(self, uuid: str) -> float | None:
        """Since it last did something, or was first seen; None: its present state is unknown."""
        now = self._clock()
        if now - self._seen.get(uuid, -_SEEN_EVERY_S * 2) > _SEEN_EVERY_S:
            return None
        return now - self._since[uuid]
