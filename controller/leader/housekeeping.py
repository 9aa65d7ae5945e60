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
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.usage import roll_up_usage
from controller.store.core.audit import audit, write_audit_result
from controller.store.core.database import Database
from controller.store.core.events import write_events, write_late_events
from controller.store.telemetry.retention import prune

log = structlog.get_logger(__name__)

_RETRYABLE: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, StaleError)
_MAX_REPORTED: Final = 20


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
