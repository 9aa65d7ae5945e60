"""Passes change notifications on. Bounded and coalescing; an overflow means "read everything"."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from controller.store.core.events import ENDS, MAX_IDS, PLACES

MAX_PENDING: Final = MAX_IDS  # distinct changes; a subscriber further behind reads everything again
_EVERY_KIND: Final = "*"
_BETWEEN_GATEWAYS: Final = (PLACES, ENDS)  # no row that watchers read has changed


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since a subscriber's last `take`. `resync`: too many to list, or unknown; read everything."""

    resync: bool
    ids: dict[str, frozenset[str]]  # by kind

    def of(self, *kinds: str) -> frozenset[str]:
        return frozenset().union(*(self.ids.get(kind, frozenset()) for kind in kinds))


class Subscription:
    """One subscriber's pending changes: a set, so that repeated changes count once."""

    def __init__(self) -> None:
        self._pending: set[tuple[str, str]] = set()
        self._resync = False
        self._some = asyncio.Event()

    def put(self, kind: str, object_id: str | None) -> None:
        """Adds a change; no id, or too many changes, become a resync."""
        if object_id is not None:
            self._pending.add((kind, object_id))
        if object_id is None or self._resync or len(self._pending) > MAX_PENDING:
            self._resync = True
            self._pending.clear()
        self._some.set()

    async def take(self) -> Changes:
        """Waits for a change and returns all pending ones; the caller limits the wait."""
        await self._some.wait()
        self._some.clear()
        ids: dict[str, set[str]] = {}
        for kind, object_id in self._pending:
            ids.setdefault(kind, set()).add(object_id)
        changes = Changes(self._resync, {kind: frozenset(of_kind) for kind, of_kind in ids.items()})
        self._pending.clear()
        self._resync = False
        return changes


class ChangeFanout:
    """The subscriptions. Publishing never blocks."""

    def __init__(self) -> None:
        self._listening: set[Subscription] = set()
        self._wakes: list[tuple[str, Callable[[], None]]] = []

    def publish(self, kind: str, object_id: str | None) -> None:
        """Passes a change to every subscriber; `object_id` None: read everything again.

        Notifications between gateways reach only callers of `woken_by`.
        """
        if kind not in _BETWEEN_GATEWAYS:
            for subscription in self._listening:
                subscription.put(kind, object_id)
        for wanted, wake in self._wakes:
            if kind in (wanted, _EVERY_KIND):
                wake()

    @contextmanager
    def woken_by(self, kind: str, wake: Callable[[], None]) -> Iterator[None]:
        """Calls `wake` at each change of this kind while the context lasts. For parts of the server itself."""
        entry = (kind, wake)
        self._wakes.append(entry)
        try:
            yield
        finally:
            self._wakes.remove(entry)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Subscribes a part of the server itself while the context lasts."""
        subscription = Subscription()
        self._listening.add(subscription)
        try:
            yield subscription
        finally:
            self._listening.discard(subscription)
