"""Leads while this controller holds the lease: begins and ends the term. Decides nothing."""

import asyncio
from collections.abc import Callable

import structlog

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.runtime.clock import Clock
from controller.runtime.metrics import Metrics
from controller.settings import ControllerSettings
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.term import Term

log = structlog.get_logger(__name__)


class Leading:
    """Runs the current term's loops and passes hints to them."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        metrics: Metrics,
        settings: ControllerSettings,
        healthy_for_s: Callable[[], float],
        *,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
        keys: SecretKeys = NO_KEYS,
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
    ) -> None:
        self._begin: Callable[[int], Term] = lambda term: Term(
            database, term, clock, metrics, settings,
            healthy_for_s=healthy_for_s, loop_lag_s=loop_lag_s, keys=keys, redaction=redaction,
        )  # fmt: skip
        self._term: Term | None = None

    def hint(self, kind: str, id_: str | None) -> None:
        """Passes a hint to the term's loops; a follower has none."""
        if self._term is not None:
            self._term.hint(kind, id_)

    async def lead(self, term: int) -> None:
        """Runs everything that only a leader runs, until cancelled."""
        log.info("leadership acquired", term=term)
        self._term = self._begin(term)
        try:
            with acting("leader"):
                await self._term.run()
        finally:
            self._term = None
            log.info("leadership lost", term=term)


class Resignation:
    """Ends a controller's leadership while it continues to serve.

    Attributes:
        asked: set it.
        done: it does not lead, and will not.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.done = asyncio.Event()

    async def carry_out(self, leading: asyncio.Task[None]) -> None:
        """Waits until it is asked for, then ends the task that holds the lease, or campaigns for it."""
        await self.asked.wait()
        leading.cancel()
        await asyncio.wait({leading})
        self.done.set()
