"""Informs agents that an operator has dismissed a driver's report of a GPU, such as a grave Xid."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import structlog
from msgspec.structs import replace

from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.workers.devices import read_dismissed

log = structlog.get_logger(__name__)

READ_LIMIT_S: Final = 10.0
GATHER_S: Final = 0.2
POLL_S: Final = 60.0  # hints can be lost
RETRY_S: Final = 1.0


class Dismissals:
    """Repeats the welcome with new numbers. An agent that was away gets them in its first welcome."""

    def __init__(self, database: Database, clock: Clock, sessions: Mapping[str, Session]) -> None:
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._woken: set[str] = set()
        self._more = asyncio.Event()

    def wake(self, worker_id: str | None) -> None:
        """The worker has changed; None: any worker may have."""
        self._woken.update(self._sessions if worker_id is None else (worker_id,))
        self._more.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._more.wait()
                await self._clock.sleep(GATHER_S)
            if not self._more.is_set():
                self._woken.update(self._sessions)
            self._more.clear()
            woken, self._woken = self._woken, set()
            try:
                await self._send([worker for worker in woken if worker in self._sessions])
            except DATABASE_ERRORS as error:
                log.warning("dismissals not read", error=str(error) or type(error).__name__, retry_s=RETRY_S)
                self._woken |= woken
                self._more.set()
                await self._clock.sleep(RETRY_S)

    async def _send(self, workers: list[str]) -> None:
        if not workers:
            return
        async with asyncio.timeout(READ_LIMIT_S), self._database.connection() as connection:
            numbers = await read_dismissed(connection, workers)
        for worker in workers:
            session, dismissed = self._sessions.get(worker), dict(numbers.get(worker, {}))
            if session is None or session.welcome is None or session.welcome.dismissed == dismissed:
                continue
            session.welcome = replace(session.welcome, dismissed=dismissed)
            session.send(session.welcome)
