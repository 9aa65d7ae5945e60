"""Ends requests that would wait for a database that is away: those under way, and each new one at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class DatabaseWaits:
    """The deadlines of requests that need the database."""

    def __init__(self) -> None:
        self._deadlines: set[asyncio.Timeout] = set()
        self._away = False

    @property
    def away(self) -> bool:
        """Whether the database is known not to answer."""
        return self._away

    def note(self, *, away: bool) -> None:
        """The database does not answer, or answers again. In the first case all that wait for it end now."""
        self._away = away
        if away:
            now = asyncio.get_running_loop().time()
            for deadline in self._deadlines:
                if not deadline.expired():
                    deadline.reschedule(now)

    @contextmanager
    def held(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Lets the deadline end early for as long as the context lasts."""
        self._deadlines.add(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)
