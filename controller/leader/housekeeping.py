"""The leader's periodic audit of the invariants, and the deletion of old rows."""

from typing import Final

import structlog

from controller.domain.events import NewEvent
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import check_term
from controller.runtime.outcome import StaleError
from controller.store.access.audit_log import prune_entries
from controller.store.access.audit_seals import seal_entries, settled_id
from controller.store.access.sealing import seal_keys
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.usage import roll_up_usage
from controller.store.core.audit import audit, write_audit_result
from controller.store.core.database import Database
from controller.store.core.events import write_events, write_late_events
from controller.store.telemetry.minute_hours import pack_hours
from controller.store.telemetry.minutes import forget_spans, roll_up
from controller.store.telemetry.retention import prune

log = structlog.get_logger(__name__)
_RETRYABLE: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, StaleError)
_MAX_REPORTED: Final = 20
_PACKING_S: Final = 5.0  # of a round, approximately: after an upgrade there are weeks to pack
# A controller of a version before, which reads plain values alone, has noticed by then that it is outdated.
FIRST_AFTER_S: Final = 15.0
EVERY_S: Final = 5.0


class Housekeeping:
    """Runs every `audit_every_s` seconds. A violation is logged each time, and written as an event once."""

    def __init__(
        self,
        database: Database,
        term: int,
        clock: Clock,
        *,
        audit_every_s: float,
        keep_events_days: int,
        keep_audit_log_days: int = 90,
        keep_actions_days: int,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._audit_every_s = audit_every_s
        self._keep_audit_log_days = keep_audit_log_days
        self._keep_events_days = keep_events_days
        self._keep_actions_days = keep_actions_days
        self._keys = keys
        self._seen: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Runs until cancelled; after a database error the next round does the work."""
        while True:
            await self._clock.sleep(self._audit_every_s)
            try:
                await self.round()
            except _RETRYABLE as error:
                log.warning("housekeeping round failed, retried in the next", error=str(error) or type(error).__name__)

    async def round(self) -> None:
        """One audit, and one batch of deletions."""
        async with self._database.snapshot() as connection:
            result = await audit(connection)
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await write_audit_result(connection, result)
        found = {f"{v.invariant}: {v.message}": v for v in result.violations}
        for text, violation in list(found.items())[:_MAX_REPORTED]:
            log.error("invariant violated", invariant=violation.invariant, evidence=violation.evidence)
            if text in self._seen:
                continue
            event = NewEvent("invariant_violated", text, ("controller:leader",), violation.evidence)
            async with self._database.transaction() as connection:
                await check_term(connection, self._term)
                await write_events(connection, [event])
        self._seen = frozenset(found)
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await write_late_events(connection)
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await roll_up_usage(connection)
            await prune(connection, keep_events_days=self._keep_events_days, keep_actions_days=self._keep_actions_days)
        await self._keep_audit_log()

    async def _keep_audit_log(self) -> None:
        """Seals the audit log's new entries, and deletes those that are old, once no seal covers them any more."""
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            settled = await settled_id(connection)
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            up_to = await seal_entries(connection, self._keys, settled, keep_days=self._keep_audit_log_days)
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await prune_entries(connection, keep_days=self._keep_audit_log_days, up_to=up_to)


class History:
    """Rolls up every `every_s` seconds; keeps spans of claims for `keep_days` days."""

    def __init__(self, database: Database, term: int, clock: Clock, *, every_s: float, keep_days: int) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._every_s = every_s
        self._keep_days = keep_days

    async def run(self) -> None:
        """Runs until cancelled; after a database error the next round does the work."""
        while True:
            try:
                await self.round()
            except _RETRYABLE as error:
                log.warning("history round failed, retried in the next", error=str(error) or type(error).__name__)
            await self._clock.sleep(self._every_s)

    async def round(self) -> None:
        """Rolls up all samples committed by now, a batch per transaction; then packs for a while."""
        all_done = False
        while not all_done:
            async with self._database.transaction() as connection:
                await check_term(connection, self._term)
                all_done = await roll_up(connection)
        await self._pack()
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await forget_spans(connection, keep_days=self._keep_days)

    async def _pack(self) -> None:
        began = self._clock.monotonic()
        all_packed = False
        while not all_packed and self._clock.monotonic() - began < _PACKING_S:
            async with self._database.transaction() as connection:
                await check_term(connection, self._term)
                all_packed = await pack_hours(connection)


class Sealing:
    """Lives as long as one term.

    Args:
        database: holds them.
        term: that it leads.
        clock: time.
        keys: of secrets.
    """

    def __init__(self, database: Database, term: int, clock: Clock, keys: SecretKeys) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._keys = keys

    async def run(self) -> None:
        """Runs until cancelled; after a database error the next round does the work."""
        await self._clock.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self.round()
            except _RETRYABLE as error:
                log.warning("keys not sealed, retried in the next round", error=str(error) or type(error).__name__)
            await self._clock.sleep(EVERY_S)

    async def round(self) -> None:
        """Seals what is plain or under an earlier key, as far as it may be."""
        await seal_keys(self._database, self._keys, lambda connection: check_term(connection, self._term))
