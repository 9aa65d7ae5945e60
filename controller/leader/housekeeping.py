"""The leader's rounds: the audit and the deletion of old rows, the history of GPUs, and the sealing of keys."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Final

import structlog

from controller.domain.events import NewEvent
from controller.runtime.clock import Clock
from controller.runtime.lease import LEADER_ERRORS, check_term, term_transaction
from controller.store.access.audit_log import prune_entries
from controller.store.access.audit_seals import seal_entries, settled_id
from controller.store.access.sealing import seal_keys
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.usage import roll_up_usage
from controller.store.core.database import Database
from controller.store.core.events import write_events, write_late_events
from controller.store.core.ledger_audit import audit, write_audit_result
from controller.store.telemetry.minute_hours import pack_hours
from controller.store.telemetry.minutes import forget_spans, roll_up
from controller.store.telemetry.retention import prune

log = structlog.get_logger(__name__)
_MAX_REPORTED: Final = 20
_PACKING_S: Final = 5.0  # of a round, approximately: after an upgrade there are weeks to pack
# A controller of a version before, which reads plain values alone, has noticed by then that it is outdated.
FIRST_AFTER_S: Final = 15.0
EVERY_S: Final = 5.0


class _Rounds(ABC):
    """Lives as long as one term. After a database error the next round does the work."""

    failure: ClassVar[str]

    def __init__(
        self, database: Database, term: int, clock: Clock, *, every_s: float, first_after_s: float = 0.0
    ) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._every_s = every_s
        self._first_after_s = first_after_s

    async def run(self) -> None:
        await self._clock.sleep(self._first_after_s)
        while True:
            try:
                await self.round()
            except LEADER_ERRORS as error:
                log.warning(self.failure, error=str(error) or type(error).__name__)
            await self._clock.sleep(self._every_s)

    @abstractmethod
    async def round(self) -> None: ...

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        return term_transaction(self._database, self._term)


class Housekeeping(_Rounds):
    """Runs every `audit_every_s` seconds. A violation is logged each time, and written as an event once."""

    failure = "housekeeping round failed, retried in the next"

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
        super().__init__(database, term, clock, every_s=audit_every_s, first_after_s=audit_every_s)
        self._keep_audit_log_days = keep_audit_log_days
        self._keep_events_days = keep_events_days
        self._keep_actions_days = keep_actions_days
        self._keys = keys
        self._known: frozenset[str] = frozenset()  # violations of the last round

    async def round(self) -> None:
        """One audit, and one batch of deletions."""
        async with self._database.snapshot() as connection:
            result = await audit(connection)
        async with self._transaction() as connection:
            await write_audit_result(connection, result)
        violations = {f"{v.invariant}: {v.message}": v for v in result.violations}
        for text, violation in list(violations.items())[:_MAX_REPORTED]:
            log.error("invariant violated", invariant=violation.invariant, evidence=violation.evidence)
            if text in self._known:
                continue
            event = NewEvent("invariant_violated", text, ("controller:leader",), violation.evidence)
            async with self._transaction() as connection:
                await write_events(connection, [event])
        self._known = frozenset(violations)
        async with self._transaction() as connection:
            await write_late_events(connection)
        async with self._transaction() as connection:
            await roll_up_usage(connection)
            await prune(connection, keep_events_days=self._keep_events_days, keep_actions_days=self._keep_actions_days)
        await self._keep_audit_log()

    async def _keep_audit_log(self) -> None:
        """Seals the audit log's new entries, and deletes old entries that no seal covers any more."""
        async with self._transaction() as connection:
            settled = await settled_id(connection)
        async with self._transaction() as connection:
            up_to = await seal_entries(connection, self._keys, settled, keep_days=self._keep_audit_log_days)
        async with self._transaction() as connection:
            await prune_entries(connection, keep_days=self._keep_audit_log_days, up_to=up_to)


class History(_Rounds):
    """Rolls up every `every_s` seconds; keeps spans of claims for `keep_days` days."""

    failure = "history round failed, retried in the next"

    def __init__(self, database: Database, term: int, clock: Clock, *, every_s: float, keep_days: int) -> None:
        super().__init__(database, term, clock, every_s=every_s)
        self._keep_days = keep_days

    async def round(self) -> None:
        """Rolls up all samples committed by now, a batch per transaction; then packs for a while."""
        all_done = False
        while not all_done:
            async with self._transaction() as connection:
                all_done = await roll_up(connection)
        await self._pack()
        async with self._transaction() as connection:
            await forget_spans(connection, keep_days=self._keep_days)

    async def _pack(self) -> None:
        started = self._clock.monotonic()
        all_packed = False
        while not all_packed and self._clock.monotonic() - started < _PACKING_S:
            async with self._transaction() as connection:
                all_packed = await pack_hours(connection)


class Sealing(_Rounds):
    """Seals the key of receipts and the secrets of agents' proxies, once all that must open them can."""

    failure = "keys not sealed, retried in the next round"

    def __init__(self, database: Database, term: int, clock: Clock, keys: SecretKeys) -> None:
        super().__init__(database, term, clock, every_s=EVERY_S, first_after_s=FIRST_AFTER_S)
        self._keys = keys

    async def round(self) -> None:
        await seal_keys(self._database, self._keys, lambda connection: check_term(connection, self._term))
