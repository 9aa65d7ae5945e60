"""One reader of new events for all watchers."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.live.shared_feed import READ_LIMIT_S, Reading, SharedFeed, Stream
from controller.store.core.database import Database
from controller.store.views.events import events_above, newest_events
from schemas.api.events import EventView
from schemas.api.view import to_json

POLL_S: Final = 0.5
PAGE: Final = 1000
# An event gets its id before its transaction commits, so a lower one may appear after a higher one. No transaction is
# longer than this.
LATE_S: Final = 30.0


class EventMessage:
    """An event with its message, which is redacted once for all watchers."""

    def __init__(self, event: EventView) -> None:
        self.event = event
        self.message = self._redacted = event_message(event)
        self._redaction = NOTHING_REDACTED

    def shown(self, redaction: Redaction) -> bytes:
        if redaction is not self._redaction:
            self._redaction, self._redacted = redaction, redaction.shown(self.message)
        return self._redacted


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Events, the oldest first."""

    events: tuple[EventMessage, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(event.message) for event in self.events)


def event_message(event: EventView) -> bytes:
    return b'{"type":"event","event":%b}' % to_json(event)


def concerns(event: EventView, deployment: str | None, names: Collection[str]) -> bool:
    """Whether an event concerns the deployment of this name (None: any), or an object with one of these event names."""
    if deployment is None or any(name in names for name in event.objects):
        return True
    return any(subject.kind == "deployment" and subject.name == deployment for subject in event.subjects)


class _EventReading(Reading[NewEvents]):
    def __init__(self, database: Database) -> None:
        super().__init__("event-feed")
        self._database = database
        self._read_at: dict[int, float] = {}  # by id, above the floor
        self._floor = 0

    def _snapshot(self, _stream: Stream[NewEvents]) -> bytes:
        return b""

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(READ_LIMIT_S), self._database.snapshot() as connection:
            known = await newest_events(connection, PAGE)
        self._read_at = dict.fromkeys(known, loop.time())
        self._floor = min(known, default=1) - 1
        self._first.set()
        while True:
            async with asyncio.timeout(READ_LIMIT_S), self._database.snapshot() as connection:
                events = await events_above(connection, self._floor, self._read_at, PAGE)
            self._read_at.update((event.id, loop.time()) for event in events)
            if events:
                self._hand_out(NewEvents(tuple(map(EventMessage, events))))
            self._raise_floor(loop.time() - LATE_S)
            if len(events) < PAGE:
                await asyncio.sleep(POLL_S)

    def _raise_floor(self, read_before: float) -> None:
        old = [id_ for id_, at in self._read_at.items() if at < read_before]
        if old:
            self._floor = max(old)
            self._read_at = {id_: at for id_, at in self._read_at.items() if id_ > self._floor}


class EventFeed(SharedFeed[NewEvents]):
    """The feed of new events."""

    def __init__(self, database: Database) -> None:
        super().__init__(lambda: _EventReading(database))
