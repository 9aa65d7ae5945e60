"""Fan-out of wake-ups to those who wait for changes: bounded, coalescing, and honest about what was lost."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MAX_PENDING: Final = 1024  # distinct hints; a subscriber further behind reads everything anew
MAX_SUBSCRIBERS: Final = 256


class TooManySubscribersError(Exception):
    """No more can be served at once."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What changed since a subscriber last asked. `resync`: too much to name, or unknown; read everything."""

    resync: bool
    ids: dict[str, frozenset[str]]  # by kind

    def of(self, *kinds: str) -> frozenset[str]:
        """The ids of these kinds together."""
        return frozenset().union(*(self.ids.get(kind, frozenset()) for kind in kinds))


class Subscription:
    """One subscriber's share: a set, so that a hint that comes twice counts once."""

    def __init__(self) -> None:
        self._pending: set[tuple[str, str]] = set()
        self._resync = False
        self._some = asyncio.Event()

    def put(self, kind: str, object_id: str | None) -> None:
        """Remembers a hint; None or too many mean everything."""
        if object_id is None or len(self._pending) >= MAX_PENDING:
            self._resync = True
            self._pending.clear()
        elif not self._resync:
            self._pending.add((kind, object_id))
        self._some.set()

    async def take(self) -> Pending:
        """Waits for a hint and returns all that came; the caller bounds the wait."""
        await self._some.wait()
        self._some.clear()
        ids: dict[str, set[str]] = {}
        for kind, object_id in self._pending:
            ids.setdefault(kind, set()).add(object_id)
        pending = Pending(self._resync, {kind: frozenset(found) for kind, found in ids.items()})
        self._pending.clear()
        self._resync = False
        return pending


class Hints:
    """Whoever listens to the database publishes; whoever watches subscribes. Publishing never waits."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def publish(self, kind: str, object_id: str | None) -> None:
        """Hands a hint to every subscriber; `object_id` None: anything of that kind, so everything is read anew."""
        for subscription in self._subscriptions:
            subscription.put(kind, object_id)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """A subscription for as long as the context lasts.

        Raises:
            TooManySubscribersError: beyond `MAX_SUBSCRIBERS`.
        """
        if len(self._subscriptions) >= MAX_SUBSCRIBERS:
            raise TooManySubscribersError(f"{MAX_SUBSCRIBERS} watches are open already; close some or poll")
        subscription = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
