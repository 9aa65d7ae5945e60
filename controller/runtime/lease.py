"""The lease: who leads, and in which term. One row in the database, whose clock alone says when it has expired.

It keeps leadership; what a leader does is the reign's business. Two readings keep a deposed leader from acting: its
transactions take the row `FOR KEY SHARE` and check the term (`check_term`), which a takeover's `FOR UPDATE` waits for
and a renewal does not; and its own monotonic clock ends its reign before the database could give the lease to another.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

import structlog

from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS, Connect
from controller.runtime.feed import CHANNEL
from controller.runtime.outcome import StaleError
from controller.runtime.tasks import end_tasks

log = structlog.get_logger(__name__)

Reign: TypeAlias = Callable[[int], Coroutine[Any, Any, None]]

TERM_GUARD_SQL = "SELECT term FROM lease WHERE id = 1 FOR KEY SHARE"

# Followers look without a lock: one that took the row FOR UPDATE every second would stand in the leader's way.
# A lease that was renewed in the future was renewed before the clock was set back: nobody knows when it runs out, and
# if its holder lives, it is only deposed.
_FREE = (
    "renewed_at NOT BETWEEN clock_timestamp() - ttl_s * interval '1 second'"
    " AND clock_timestamp() + ttl_s * interval '1 second'"
)
_EXPIRED_SQL = f"SELECT {_FREE} FROM lease WHERE id = 1"  # noqa: S608 - a constant
# A leader that stands still in mid-transaction would hold the row for as long as it stands. Half a lease is far more
# than a transaction takes, and less than any has lasted that a leader began before its lease ran out.
_CUT_SQL = """
SELECT pg_terminate_backend(l.pid)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database() AND a.usename = current_user
WHERE l.relation = 'lease'::regclass AND l.mode = 'RowShareLock' AND l.pid <> pg_backend_pid()
  AND a.xact_start < clock_timestamp() - $1 / 2 * interval '1 second'
"""
# Waits for the transactions of the leader that is being replaced. `term` stands in no unique index, so the UPDATE that
# follows would not.
_LOCK_SQL = "SELECT 1 FROM lease WHERE id = 1 FOR UPDATE"
_TAKE_SQL = f"""
UPDATE lease
SET term = term + 1, holder = $1, ttl_s = $2, acquired_at = clock_timestamp(), renewed_at = clock_timestamp()
WHERE id = 1 AND {_FREE}
RETURNING term
"""  # noqa: S608 - as above
_RENEW_SQL = "UPDATE lease SET renewed_at = clock_timestamp() WHERE id = 1 AND term = $1 RETURNING term"
_RELEASE_SQL = "UPDATE lease SET renewed_at = '-infinity' WHERE id = 1 AND term = $1 RETURNING pg_notify($2, 'lease *')"

_RELEASE_LIMIT_S = 2.0


class TermLost(StaleError):  # noqa: N818 - named by what happened
    """Another leader has taken over: what this transaction read and wants to write no longer counts."""


async def check_term(connection: Any, term: int) -> None:
    """Make sure, in the open transaction of `connection`, that `term` leads until that transaction ends.

    Raises:
        TermLost: another term leads.
    """
    leading = await connection.fetchval(TERM_GUARD_SQL)
    if leading != term:
        raise TermLost(f"term {term} is over, term {leading} leads")


class Lease:
    """Campaigns for the lease, and runs the reign while it holds it.

    Args:
        connect: opens a dedicated connection.
        holder: names this process, uniquely.
        clock: time.
        ttl_s: seconds without renewal after which another may take over.
        renew_s: seconds between renewals.
        margin_s: the reign ends this long before the lease could go to another; by default a fifth of `ttl_s`.
        poll_s: a follower looks about this often.
        reign_stop_s: how long a cancelled reign may take to end.
        rng: chance, for jitter.
        channel: of the NOTIFY by which a release wakes the followers.
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
        reign_stop_s: float = 30.0,
        rng: random.Random | None = None,
        channel: str = CHANNEL,
    ) -> None:
        self._margin_s = ttl_s / 5 if margin_s is None else margin_s
        if not 0 < renew_s < ttl_s - self._margin_s:
            limit_s = ttl_s - self._margin_s
            raise ValueError(f"renew_s must lie between 0 and ttl_s - margin_s = {limit_s:g}, got {renew_s:g}")
        if not holder:
            raise ValueError("holder must name this process, it is empty")
        self._connect = connect
        self._holder = holder
        self._clock = clock
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._poll_s = poll_s
        self._reign_stop_s = reign_stop_s
        self._rng = rng or random.Random()  # noqa: S311 - jitter only, no secret
        self._channel = channel
        self._connection: Any = None
        self._term: int | None = None
        self._good_until = 0.0
        self._woken = asyncio.Event()

    @property
    def term(self) -> int | None:
        """The term that we lead; None for a follower, and as soon as our own clock says that the lease has run out."""
        return self._term if self._clock.monotonic() < self._good_until else None

    def wake(self) -> None:
        """Have a follower look now: the lease may be free."""
        self._woken.set()

    async def run(self, leader_term: Reign) -> None:
        """Campaign and reign in turns until cancelled, or until the reign ends by itself; then give the lease back.

        Args:
            leader_term: called with the term, as a task that is cancelled when the term is over.

        Raises:
            Exception: whatever the reign raised.
            RuntimeError: a cancelled reign did not end; the process should, because two might lead otherwise.
        """
        try:
            while True:
                term = await self._campaign()
                if await self._lead(term, leader_term):
                    return
        finally:
            self._drop()

    async def _campaign(self) -> int:
        """Wait until the lease is ours; return the term."""
        complained = False  # once per outage, not once per look
        while True:
            self._woken.clear()
            try:
                async with asyncio.timeout(self._ttl_s - self._margin_s):
                    term = await self._try_take()
                complained = False
            except DATABASE_ERRORS as error:
                term = None
                self._drop()
                if not complained:
                    log.warning("campaign failed", holder=self._holder, error=str(error) or type(error).__name__)
                complained = True
            if term is not None:
                log.info("lease acquired", holder=self._holder, term=term)
                return term
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s * self._rng.uniform(0.8, 1.2)):
                    await self._woken.wait()

    async def _try_take(self) -> int | None:
        connection = await self._connected()
        if not await connection.fetchval(_EXPIRED_SQL):
            return None
        await connection.execute(_CUT_SQL, self._ttl_s)
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_LOCK_SQL)
            # Only from here on does our time run: the wait for the lock may have been long.
            began = self._clock.monotonic()
            term: int | None = await connection.fetchval(_TAKE_SQL, self._holder, self._ttl_s)
        if term is not None:
            self._term = term
            self._good_until = began + self._ttl_s - self._margin_s
        return term

    async def _lead(self, term: int, leader_term: Reign) -> bool:
        """Run the reign while the lease is renewed; return whether the reign ended by itself."""
        reigning = asyncio.create_task(leader_term(term), name=f"reign-{term}")
        renewing = asyncio.create_task(self._renew_for(term), name=f"renew-{term}")
        try:
            await asyncio.wait({reigning, renewing}, return_when=asyncio.FIRST_COMPLETED)
            ended_by_itself = reigning.done()
        finally:
            await self._end_reign(term, reigning, renewing)
        if ended_by_itself:
            reigning.result()
        return ended_by_itself

    async def _end_reign(self, term: int, reigning: asyncio.Task[None], renewing: asyncio.Task[None]) -> None:
        """End the reign and only then the renewal, so that nobody else leads while ours tidies up; then release."""
        try:
            await end_tasks([reigning], limit_s=self._reign_stop_s)
        finally:
            try:
                await end_tasks([renewing], limit_s=self._reign_stop_s)
            finally:
                still_ours = self.term == term
                self._term = None
            if not reigning.done():
                raise RuntimeError(
                    f"the reign of term {term} did not end within {self._reign_stop_s:g} s of its cancel"
                )
            if still_ours:
                await self._release(term)

    async def _renew_for(self, term: int) -> None:
        """Renew until the lease is lost: taken by another, or not renewed in time."""
        pause_s = self._renew_s
        while (left_s := self._good_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left_s, pause_s))
            began = self._clock.monotonic()
            if began >= self._good_until:
                break
            try:
                # A hung attempt leaves time for another one, on a new connection.
                async with asyncio.timeout(min(self._good_until - began, self._renew_s)):
                    connection = await self._connected()
                    renewed = await connection.fetchval(_RENEW_SQL, term)
            except DATABASE_ERRORS as error:
                log.warning("lease renewal failed", term=term, error=str(error) or type(error).__name__)
                self._drop()
                pause_s = self._renew_s * self._rng.uniform(0.1, 0.3)
                continue
            if renewed is None:
                self._good_until = 0.0
                log.error("lease lost: taken over", holder=self._holder, term=term)
                return
            self._good_until = began + self._ttl_s - self._margin_s
            pause_s = self._renew_s * self._rng.uniform(0.8, 1.0)
        log.error("lease lost: not renewed in time", holder=self._holder, term=term)

    async def _release(self, term: int) -> None:
        """Give the lease back, so that a successor need not wait for its end; if that fails it ends by itself."""
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
