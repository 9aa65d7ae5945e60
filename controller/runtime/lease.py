"""The lease of the leader: one row in the database, whose clock alone decides its expiry.

Two checks keep a former leader from acting. Its transactions take the row `FOR KEY SHARE` and check the term
(`check_term`): a takeover's `FOR UPDATE` waits for them, a renewal does not. And its own monotonic clock ends its term
before the database could give the lease to another controller.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeAlias

import structlog

from controller.domain.effects import StaleError
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS, Connect
from controller.runtime.feed import CHANNEL
from controller.runtime.tasks import end_tasks

log = structlog.get_logger(__name__)

# Errors of the leader's reads and writes where the database is away, or another term leads.
LEADER_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, StaleError)
Fit: TypeAlias = Callable[[Any], Coroutine[Any, Any, str | None]]  # why this process must not lead; None: it may
Promoted: TypeAlias = Callable[[Any, int, int], Coroutine[Any, Any, None]]  # the timelines before, and now
Lead: TypeAlias = Callable[[int], Coroutine[Any, Any, None]]  # runs while the term lasts

# It also has the transaction find rows by index. A connection keeps its first plan of a foreign key's check. A plan
# that was made while a table was small would read all of it for each row of a later burst.
TERM_GUARD_SQL = (
    "SELECT term FROM lease, LATERAL (SELECT set_config('enable_seqscan', 'off', true)) by_index"
    " WHERE id = 1 FOR KEY SHARE OF lease"
)

# Followers read without a lock, since FOR UPDATE every second would block the leader.
# A renewal time in the future was written before the clock was set back. The expiry of that lease is unknown, so it
# counts as free; if its holder lives, the holder only loses leadership.
_FREE = (
    "renewed_at NOT BETWEEN clock_timestamp() - ttl_s * interval '1 second'"
    " AND clock_timestamp() + ttl_s * interval '1 second'"
)
# A standby was promoted: it may lack the last commits, with renewals and terms among them. No term outlasts that.
_PROMOTED = "coalesce(timeline <> database_timeline(), false)"
_EXPIRED_SQL = f"SELECT {_FREE} OR {_PROMOTED} FROM lease WHERE id = 1"  # noqa: S608 - a constant
_TIMELINES_SQL = "SELECT timeline AS before, database_timeline() AS now FROM lease WHERE id = 1"
_CUT_SQL = "UPDATE lease SET cut_at = clock_timestamp() WHERE id = 1 RETURNING pg_notify($1, 'cut *')"
# A leader that freezes inside a transaction would hold the row for as long as it is frozen. Half a lease is far longer
# than a transaction takes, and shorter than the age of any transaction that began before the lease expired.
_TERMINATE_SQL = """
SELECT pg_terminate_backend(l.pid)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database() AND a.usename = current_user
WHERE l.relation = 'lease'::regclass AND l.mode = 'RowShareLock' AND l.pid <> pg_backend_pid()
  AND a.xact_start < clock_timestamp() - $1 / 2 * interval '1 second'
"""
# Waits for the former leader's transactions. `term` is in no unique index, so the UPDATE that follows would not wait.
_LOCK_SQL = "SELECT 1 FROM lease WHERE id = 1 FOR UPDATE"
_ACQUIRE_SQL = f"""
UPDATE lease
SET term = term + 1, holder = $1, ttl_s = $2, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
    timeline = coalesce(database_timeline(), timeline)
WHERE id = 1 AND ({_FREE} OR {_PROMOTED})
RETURNING term
"""  # noqa: S608 - as above
_RENEW_SQL = f"""
UPDATE lease SET renewed_at = clock_timestamp() WHERE id = 1 AND term = $1 AND NOT {_PROMOTED} RETURNING term
"""  # noqa: S608 - as above
_READ_TERM_SQL = "SELECT term FROM lease WHERE id = 1"
_EXPIRE_SQL = "UPDATE lease SET renewed_at = '-infinity'"
# The lease is free afterwards: no controller leads the new term, the next leader acquires a higher one.
_GO_ABOVE_SQL = """
UPDATE lease SET term = $1 + 1, renewed_at = '-infinity', cut_at = clock_timestamp()
WHERE id = 1 AND term <= $1
RETURNING term, pg_notify($2, 'lease *'), pg_notify($2, 'cut *')
"""
_RELEASE_SQL = "UPDATE lease SET renewed_at = '-infinity' WHERE id = 1 AND term = $1 RETURNING pg_notify($2, 'lease *')"

_RELEASE_LIMIT_S = 2.0


class TermLost(StaleError):  # noqa: N818 - named by the event
    """Another controller leads: this transaction must not write."""


async def check_term(connection: Any, term: int) -> None:
    """Guards the open transaction: `term` leads until it ends. Raises TermLost if another term leads."""
    leading = await connection.fetchval(TERM_GUARD_SQL)
    if leading != term:
        raise TermLost(f"term {term} is over, term {leading} leads")


class Transactions(Protocol):
    """The store's database, which runtime does not import."""

    def transaction(self) -> AbstractAsyncContextManager[Any]: ...


@asynccontextmanager
async def term_transaction(database: Transactions, term: int) -> AsyncIterator[Any]:
    """Yields a connection in a transaction during which `term` leads. Raises TermLost if another term leads."""
    async with database.transaction() as connection:
        await check_term(connection, term)
        yield connection


async def read_term(connection: Any) -> int:
    """Returns the present term, without a guard."""
    term: int = await connection.fetchval(_READ_TERM_SQL)
    return term


async def expire_lease(connection: Any) -> None:
    """Expires the lease at once. Only for a caller with proof that its holder has ended."""
    await connection.execute(_EXPIRE_SQL)


async def go_above(connection: Any, term: int) -> int | None:
    """Ends the present term and raises the lease's above `term`: the ledger lost commits that agents have received.

    In an open transaction. It waits for those of the present leader, and fences its later ones, as a takeover does.

    Returns:
        The lease's new term, which no controller leads; None if it is above `term` already.
    """
    await connection.execute(_LOCK_SQL)
    raised: int | None = await connection.fetchval(_GO_ABOVE_SQL, term, CHANNEL)
    return raised


class Lease:
    """Campaigns for the lease, and leads while it holds the lease.

    Args:
        holder: a unique name of this process.
        ttl_s: without renewal, after which another controller may take over.
        renew_s: between renewals.
        margin_s: the term ends this long before the lease could expire; by default a fifth of `ttl_s`.
        poll_s: between a follower's reads of the lease, with jitter.
        stop_limit_s: limit on the end of a cancelled leader task.
        unfit: called with the lease's connection before each term; returns why this process must not lead.
        promoted: called in the transaction in which a term starts on another timeline of the database.
        channel: of the NOTIFY that wakes the followers at a release.
    """

    def __init__(
        self,
        connect: Connect,
        holder: str,
        clock: Clock,
        *,
        ttl_s: float = 10.0,
        renew_s: float = 3.0,
        margin_s: float | None = None,
        poll_s: float = 1.0,
        stop_limit_s: float = 30.0,
        rng: random.Random | None = None,
        unfit: Fit | None = None,
        promoted: Promoted | None = None,
        channel: str = CHANNEL,
    ) -> None:
        self._unfit = unfit
        self._promoted = promoted
        self._margin_s = ttl_s / 5 if margin_s is None else margin_s
        if not 0 < renew_s < ttl_s - self._margin_s:
            limit_s = ttl_s - self._margin_s
            raise ValueError(f"renew_s: must be between 0 and ttl_s - margin_s = {limit_s:g}, got {renew_s:g}")
        if not holder:
            raise ValueError("holder: must name this process, got an empty string")
        self._connect = connect
        self._holder = holder
        self._clock = clock
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._poll_s = poll_s
        self._stop_limit_s = stop_limit_s
        self._rng = rng or random.Random()  # noqa: S311 - jitter only, no secret
        self._channel = channel
        self._connection: Any = None
        self._term: int | None = None
        self._valid_until = 0.0
        self._woken = asyncio.Event()
        self._why_unfit: str | None = None

    @property
    def term(self) -> int | None:
        """The term of this leader; None for a follower, and once the lease has expired by our own clock."""
        return self._term if self._clock.monotonic() < self._valid_until else None

    def wake(self) -> None:
        """Has a follower read the lease now."""
        self._woken.set()

    async def run(self, lead: Lead) -> None:
        """Campaigns and leads in turns until cancelled, or until `lead` returns; then releases the lease.

        `lead` is called with the term, as a task that is cancelled when the term is over. Its exceptions are raised.

        Raises:
            RuntimeError: the cancelled leader task did not end. The process must exit, or two controllers might lead.
        """
        try:
            while True:
                term = await self._campaign()
                if await self._run_while_leading(term, lead):
                    return
        finally:
            self._drop()

    async def _campaign(self) -> int:
        """Waits until this process has acquired the lease; returns the term."""
        warned = False  # once per outage, not once per attempt
        while True:
            self._woken.clear()
            try:
                async with asyncio.timeout(self._ttl_s - self._margin_s):
                    term = await self._try_acquire()
                warned = False
            except DATABASE_ERRORS as error:
                term = None
                self._drop()
                if not warned:
                    log.warning("lease campaign failed", holder=self._holder, error=str(error) or type(error).__name__)
                warned = True
            if term is not None:
                log.info("lease acquired", holder=self._holder, term=term)
                return term
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s * self._rng.uniform(0.8, 1.2)):
                    await self._woken.wait()

    async def _try_acquire(self) -> int | None:
        connection = await self._connected()
        if not await connection.fetchval(_EXPIRED_SQL) or await self._is_unfit(connection):
            return None
        await connection.execute(_TERMINATE_SQL, self._ttl_s)
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_LOCK_SQL)
            if await self._is_unfit(connection):  # it may have changed while the lock was awaited
                return None
            # The lease counts from here: the wait for the lock may have been long.
            started = self._clock.monotonic()
            timelines = await connection.fetchrow(_TIMELINES_SQL)
            term: int | None = await connection.fetchval(_ACQUIRE_SQL, self._holder, self._ttl_s)
            if term is not None:
                await self._note_timeline(connection, *timelines)
        if term is not None:
            self._term = term
            self._valid_until = started + self._ttl_s - self._margin_s
        return term

    async def _note_timeline(self, connection: Any, before: int | None, now: int | None) -> None:
        """Has all agents report again what runs, where the database was promoted: commits may be lost."""
        if before is None or now is None or before == now:
            return
        await connection.execute(_CUT_SQL, self._channel)
        if self._promoted is not None:
            await self._promoted(connection, before, now)
        log.warning("the database was promoted, its last commits may be lost", timeline=now, before=before)

    async def _run_while_leading(self, term: int, lead: Lead) -> bool:
        """Runs `lead` while the lease is renewed; returns whether it ended by itself."""
        leading = asyncio.create_task(lead(term), name=f"lead-{term}")
        renewing = asyncio.create_task(self._renew_for(term), name=f"renew-{term}")
        try:
            await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
            ended_by_itself = leading.done()
        finally:
            await self._end_term(term, leading, renewing)
        if ended_by_itself:
            leading.result()
        return ended_by_itself

    async def _end_term(self, term: int, leading: asyncio.Task[None], renewing: asyncio.Task[None]) -> None:
        """Ends the leader task, then the renewal, so that no other controller leads during its clean-up; releases."""
        try:
            await end_tasks([leading], limit_s=self._stop_limit_s)
        finally:
            try:
                await end_tasks([renewing], limit_s=self._stop_limit_s)
            finally:
                still_ours = self.term == term
                self._term = None
            if not leading.done():
                raise RuntimeError(
                    f"the leader task of term {term} did not end within {self._stop_limit_s:g} s of its cancel"
                )
            if still_ours:
                await self._release(term)

    async def _renew_for(self, term: int) -> None:
        """Renews until leadership is lost: another controller took over, or no renewal succeeded in time."""
        pause_s = self._renew_s
        while (left_s := self._valid_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left_s, pause_s))
            started = self._clock.monotonic()
            if started >= self._valid_until:
                break
            try:
                # Bounded, so that after a hung attempt there is time for another attempt, on a new connection.
                async with asyncio.timeout(min(self._valid_until - started, self._renew_s)):
                    connection = await self._connected()
                    renewed = await connection.fetchval(_RENEW_SQL, term)
            except DATABASE_ERRORS as error:
                log.warning("lease renewal failed", term=term, error=str(error) or type(error).__name__)
                self._drop()
                pause_s = self._renew_s * self._rng.uniform(0.1, 0.3)
                continue
            if renewed is None:
                self._valid_until = 0.0
                log.error("lost leadership: another term or timeline has started", holder=self._holder, term=term)
                return
            self._valid_until = started + self._ttl_s - self._margin_s
            pause_s = self._renew_s * self._rng.uniform(0.8, 1.0)
        log.error("lost leadership: lease not renewed in time", holder=self._holder, term=term)

    async def _is_unfit(self, connection: Any) -> bool:
        """Returns whether this process must not lead. Logs each reason once."""
        why = None if self._unfit is None else await self._unfit(connection)
        if why is not None and why != self._why_unfit:
            log.error("this controller does not lead", holder=self._holder, reason=why)
        self._why_unfit = why
        return why is not None

    async def _release(self, term: int) -> None:
        """Releases the lease, so that a successor need not wait for its expiry."""
        try:
            async with asyncio.timeout(_RELEASE_LIMIT_S):
                connection = await self._connected()
                await connection.execute(_RELEASE_SQL, term, self._channel)
        except DATABASE_ERRORS as error:
            log.warning("lease release failed", term=term, error=str(error) or type(error).__name__)
            self._drop()
        else:
            log.info("lease released", holder=self._holder, term=term)

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
