"""Unwritten messages by connection, and the loop that writes them in batches over all connections."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, Self, TypeVar

import structlog

from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS

log = structlog.get_logger(__name__)

WRITE_LIMIT_S: Final = 20.0
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


class Unwritten(ABC):
    """The unwritten messages of one connection."""

    session: Session

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def add_newer(self, newer: Self) -> None: ...


U = TypeVar("U", bound=Unwritten)


class WriteQueue(Generic[U]):
    """A queue by connection, the oldest first.

    `keep_ended`: failed entries of ended connections are tried again; otherwise their agents send them again.
    """

    def __init__(self, clock: Clock, new: Callable[[Session], U], *, keep_ended: bool) -> None:
        self._clock = clock
        self._new = new
        self._keep_ended = keep_ended
        self._entries: dict[Session, U] = {}
        self._more = asyncio.Event()

    def entry(self, session: Session) -> U:
        """The session's entry, empty if it is new. Call `added` after a change."""
        return self._entries.setdefault(session, self._new(session))

    def added(self) -> None:
        self._more.set()

    def drop(self, session: Session) -> None:
        self._entries.pop(session, None)

    def take(self, limit: int) -> list[U]:
        """Takes complete entries, of about this size together."""
        batch: list[U] = []
        size = 0
        while self._entries and size < limit:
            batch.append(self._entries.pop(next(iter(self._entries))))
            size += len(batch[-1])
        if not self._entries:
            self._more.clear()
        return batch

    def put_back(self, batch: Iterable[U]) -> None:
        """Queues an unwritten batch again, at the end."""
        for older in batch:
            if older.session.over and not self._keep_ended:
                continue
            newer = self._entries.pop(older.session, None)
            if newer is not None:
                older.add_newer(newer)
            self._entries[older.session] = older
        if self._entries:
            self._more.set()

    async def run(
        self,
        what: str,
        write: Callable[[list[U]], Awaitable[None]],
        *,
        batch_size: int,
        gather_s: float = 0.0,
        retried: tuple[type[Exception], ...] = DATABASE_ERRORS,
    ) -> None:
        """Writes batches until cancelled.

        Args:
            what: for logs.
            write: writes a batch.
            batch_size: approximate maximum.
            gather_s: time for which messages are gathered before a write.
            retried: errors after which a batch is tried again.
        """
        failures = 0
        while True:
            await self._more.wait()
            if gather_s:
                await self._clock.sleep(gather_s)
            # After a failure one connection at a time, so that a connection at fault does not block all.
            batch = self.take(1 if failures else batch_size)
            try:
                async with asyncio.timeout(WRITE_LIMIT_S):
                    await write(batch)
                failures = 0
            except retried as error:
                self.put_back(batch)
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                log.warning("agent messages not written", kind=what, error=str(error), attempt=failures, retry_s=wait_s)
                await self._clock.sleep(wait_s)
