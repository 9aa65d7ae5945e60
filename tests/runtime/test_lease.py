"""The lease against a real PostgreSQL: one leader, rising terms, prompt loss of leadership, and its locks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from controller.domain.effects import StaleError
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.runtime.lease import _RENEW_SQL, TERM_GUARD_SQL, Lease, TermLost, check_term, go_above
from runtime.polling import until

Connect = Callable[[], Awaitable[Any]]
EXPIRE = "UPDATE lease SET renewed_at = '-infinity'"
TAKE_OVER = "UPDATE lease SET term = term + 1, holder = 'rival', renewed_at = clock_timestamp() RETURNING term"


class LeaderLog:
    """A leader task that runs until it is cancelled, and records its begin and end."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.changed = asyncio.Event()
        self.cleanup_s = 0.0

    async def __call__(self, term: int) -> None:
        self._note("began", term)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.cleanup_s)
            self._note("ended", term)

    def _note(self, what: str, term: int) -> None:
        self.log.append((what, term))
        self.changed.set()

    async def until(self, entry: tuple[str, int]) -> None:
        async with asyncio.timeout(20):
            while entry not in self.log:
                self.changed.clear()
                await self.changed.wait()


def lease_of(connect: Connect, holder: str, **more: Any) -> Lease:
    return Lease(connect, holder, SystemClock(), **({"ttl_s": 2.0, "renew_s": 0.2, "poll_s": 0.1} | more))


@asynccontextmanager
async def campaigning(lease: Lease, lead: Callable[[int], Any]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(lease.run(lead))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        assert task.done()
        if not task.cancelled():
            task.exception()


async def test_a_lease_renewed_in_the_future_is_free(connect: Connect) -> None:
    """The database's clock was set back, and the leader died: the lease is free at once."""
    terms, lease, observer = LeaderLog(), lease_of(connect, "one"), await connect()
    await observer.execute("UPDATE lease SET term = 7, ttl_s = 2, renewed_at = clock_timestamp() + interval '1 hour'")
    async with campaigning(lease, terms):
        await terms.until(("began", 8))
        assert lease.term == 8


async def test_a_free_lease_is_acquired_renewed_and_released(connect: Connect) -> None:
    terms, lease, observer = LeaderLog(), lease_of(connect, "one"), await connect()
    async with campaigning(lease, terms):
        await terms.until(("began", 1))
        assert lease.term == 1
        first = await observer.fetchval("SELECT renewed_at FROM lease")
        await asyncio.sleep(2.5)  # longer than the lease lasts
        assert lease.term == 1
        assert await observer.fetchval("SELECT renewed_at FROM lease") > first
        assert await observer.fetchval("SELECT holder FROM lease") == "one"
    assert terms.log == [("began", 1), ("ended", 1)]
    assert lease.term is None
    assert await observer.fetchval("SELECT renewed_at = '-infinity' FROM lease")
    assert await observer.fetchval("SELECT term FROM lease") == 1


async def test_a_release_wakes_the_follower_which_then_leads(connect: Connect) -> None:
    one, two = LeaderLog(), LeaderLog()
    leader, follower = lease_of(connect, "one"), lease_of(connect, "two", poll_s=60)
    feed = ChangeFeed(connect, lambda kind, _: follower.wake() if kind == "lease" else None, SystemClock())
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(feed.run())
        async with campaigning(leader, one) as leading:
            await one.until(("began", 1))
            async with campaigning(follower, two):
                await until(lambda: feed.connected_at is not None)
                await asyncio.sleep(0.3)
                assert follower.term is None
                assert not two.log
                leading.cancel()
                await two.until(("began", 2))
                assert follower.term == 2
        listening.cancel()


async def test_of_many_campaigners_only_one_leads(connect: Connect) -> None:
    leading: set[int] = set()
    most = 0
    terms: list[int] = []

    async def lead(term: int) -> None:
        nonlocal most
        leading.add(term)
        terms.append(term)
        most = max(most, len(leading))
        try:
            await asyncio.sleep(0.1)
        finally:
            leading.discard(term)

    async with asyncio.timeout(30):
        await asyncio.gather(*(lease_of(connect, f"h{n}").run(lead) for n in range(6)))
    assert most == 1
    assert terms == [1, 2, 3, 4, 5, 6]


async def test_a_leader_that_loses_its_term_stops_and_campaigns_again(connect: Connect) -> None:
    terms, lease, rival = LeaderLog(), lease_of(connect, "one"), await connect()
    async with campaigning(lease, terms):
        await terms.until(("began", 1))
        assert await rival.fetchval(TAKE_OVER) == 2
        await terms.until(("ended", 1))
        assert lease.term is None
        assert await rival.fetchval("SELECT holder FROM lease") == "rival"
        await rival.execute(EXPIRE)
        await terms.until(("began", 3))
        assert lease.term == 3


async def test_a_leader_that_cannot_renew_stops_before_its_lease_could_go_to_another(connect: Connect) -> None:
    terms, lease = LeaderLog(), lease_of(connect, "one", ttl_s=1.0, renew_s=0.1)
    blocker, observer = await connect(), await connect()
    async with campaigning(lease, terms):
        await terms.until(("began", 1))
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease FOR UPDATE")
            await terms.until(("ended", 1))
            assert lease.term is None
            expired = "SELECT renewed_at + ttl_s * interval '1 second' < clock_timestamp() FROM lease"
            assert not await observer.fetchval(expired)
        await terms.until(("began", 2))


async def test_a_leader_survives_a_short_outage(connect: Connect) -> None:
    terms, lease, killer = LeaderLog(), lease_of(connect, "one"), await connect()
    async with campaigning(lease, terms):
        await terms.until(("began", 1))
        killed = 0
        for _ in range(3):
            killed += await killer.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE '%UPDATE lease%' AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.4)
        assert killed
        await asyncio.sleep(1)
        assert lease.term == 1
        assert terms.log == [("began", 1)]


async def test_the_term_ends_by_our_own_clock_before_any_other_code_runs(connect: Connect) -> None:
    class Frozen(SystemClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    clock, terms = Frozen(), LeaderLog()
    lease = Lease(connect, "one", clock, ttl_s=10, renew_s=3)
    async with campaigning(lease, terms):
        await terms.until(("began", 1))
        assert lease.term == 1
        clock.ahead_s = 8.5  # as after a long pause of the whole process
        assert lease.term is None


async def test_the_lease_is_renewed_while_the_leader_task_cleans_up(connect: Connect) -> None:
    one, two = LeaderLog(), LeaderLog()
    one.cleanup_s = 3.0  # longer than the lease lasts
    async with campaigning(lease_of(connect, "one"), one) as leading:
        await one.until(("began", 1))
        async with campaigning(lease_of(connect, "two"), two):
            leading.cancel()
            await two.until(("began", 2))
            assert one.log == [("began", 1), ("ended", 1)]


async def test_a_failed_leader_task_fails_the_run_and_releases_the_lease(connect: Connect) -> None:
    async def failing(_term: int) -> None:
        raise ZeroDivisionError("a bug in the leader task")

    with pytest.raises(ZeroDivisionError):
        await lease_of(connect, "one").run(failing)
    assert await (await connect()).fetchval("SELECT renewed_at = '-infinity' FROM lease")


async def test_a_leader_task_that_does_not_end_is_an_error_and_keeps_the_lease(connect: Connect) -> None:
    let_go = asyncio.Event()

    async def stubborn(_term: int) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    observer = await connect()
    lease = lease_of(connect, "one", stop_limit_s=0.5)
    task = asyncio.create_task(lease.run(stubborn))
    await until(lambda: lease.term is not None)
    task.cancel()
    with pytest.raises(RuntimeError, match="did not end"):
        await task
    assert not await observer.fetchval("SELECT renewed_at = '-infinity' FROM lease")
    let_go.set()


async def test_an_open_guard_blocks_a_takeover_but_not_a_renewal(connect: Connect) -> None:
    guarded, renewing, taking = await connect(), await connect(), await connect()
    await guarded.execute("UPDATE lease SET term = 5, renewed_at = '-infinity'")
    terms = LeaderLog()
    transaction = guarded.transaction()
    await transaction.start()
    await check_term(guarded, 5)
    assert await renewing.fetchval(_RENEW_SQL, 5, timeout=5) == 5
    await renewing.execute(EXPIRE)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await taking.fetchval("SELECT 1 FROM lease WHERE id = 1 FOR UPDATE NOWAIT")
    async with campaigning(lease_of(connect, "two"), terms):
        await asyncio.sleep(0.5)
        assert not terms.log
        assert await guarded.fetchval("SELECT term FROM lease") == 5
        await transaction.commit()
        await terms.until(("began", 6))


async def test_a_guard_after_a_takeover_is_stale(connect: Connect) -> None:
    connection = await connect()
    await connection.execute("UPDATE lease SET term = 5")
    async with connection.transaction():
        with pytest.raises(TermLost, match="term 4 is over, term 5 leads") as caught:
            await check_term(connection, 4)
    assert isinstance(caught.value, StaleError)


async def test_a_guard_that_waits_for_a_takeover_sees_the_new_term(connect: Connect) -> None:
    taking, guarded = await connect(), await connect()
    transaction = taking.transaction()
    await transaction.start()
    await taking.execute("SELECT 1 FROM lease WHERE id = 1 FOR UPDATE")
    asked = asyncio.create_task(guarded.fetchval(TERM_GUARD_SQL))
    await asyncio.sleep(0.2)
    assert not asked.done()
    await taking.execute(TAKE_OVER)
    await transaction.commit()
    assert await asked == 1


@pytest.mark.parametrize("wrong", [{"renew_s": 9.0, "ttl_s": 10.0}, {"renew_s": 0.0}, {"holder": ""}])
def test_invalid_arguments_are_refused(wrong: dict[str, Any]) -> None:
    async def nowhere() -> Any:
        raise ConnectionRefusedError

    with pytest.raises(ValueError, match="must"):
        Lease(nowhere, **({"holder": "one", "clock": SystemClock()} | wrong))


async def test_a_lost_history_is_passed_by_the_very_leader_it_surprised(connect: Connect) -> None:
    """The lease of a restored database names term 5, an agent has seen 40: at one hello the next term is above it."""
    observer, terms, lease = await connect(), LeaderLog(), lease_of(connect, "one", ttl_s=30.0, renew_s=0.2)
    await observer.execute("UPDATE lease SET term = 5, renewed_at = '-infinity'")
    async with campaigning(lease, terms):
        await terms.until(("began", 6))
        async with observer.transaction():
            assert await go_above(observer, 40) == 41
        await terms.until(("began", 42))
        assert terms.log == [("began", 6), ("ended", 6), ("began", 42)]
        async with observer.transaction():
            assert await go_above(observer, 41) is None


async def test_going_above_waits_for_what_the_leader_writes(connect: Connect) -> None:
    guarded, raising = await connect(), await connect()
    await guarded.execute("UPDATE lease SET term = 5")
    transaction = guarded.transaction()
    await transaction.start()
    await check_term(guarded, 5)

    async def raise_it() -> int | None:
        async with raising.transaction():
            return await go_above(raising, 9)

    rising = asyncio.create_task(raise_it())
    await asyncio.sleep(0.2)
    assert not rising.done()
    await transaction.commit()
    assert await rising == 10
    async with guarded.transaction():
        with pytest.raises(TermLost):
            await check_term(guarded, 5)


async def test_what_is_unfit_leads_no_further_term_and_a_fit_one_leads(connect: Connect) -> None:
    """As a controller whose database another one has migrated to a newer schema, which ended its term."""
    outdated: list[str] = []
    observer = await connect()

    async def unfit(_connection: Any) -> str | None:
        return outdated[0] if outdated else None

    old, new = LeaderLog(), LeaderLog()
    async with campaigning(lease_of(connect, "old", unfit=unfit, ttl_s=30.0, renew_s=0.2), old):
        await old.until(("began", 1))
        outdated.append("the schema is newer")
        await observer.execute("UPDATE lease SET term = term + 1, renewed_at = '-infinity'")
        await old.until(("ended", 1))
        async with campaigning(lease_of(connect, "new", ttl_s=30.0, renew_s=0.2), new):
            await new.until(("began", 3))
        await asyncio.sleep(0.5)
        assert old.log == [("began", 1), ("ended", 1)], "the lease is free, and it does not take it"
        outdated.clear()
        await old.until(("began", 4))


async def test_a_promoted_database_ends_the_term_and_has_the_agents_tell_anew(connect: Connect) -> None:
    """A standby that takes over has another timeline. It may lack commits, so no term goes on."""
    observer, terms, told = await connect(), LeaderLog(), []

    async def promoted(connection: Any, before: int, now: int) -> None:
        told.append((before, now, await connection.fetchval("SELECT term FROM lease")))

    async with campaigning(lease_of(connect, "one", ttl_s=30.0, renew_s=0.2, promoted=promoted), terms):
        await terms.until(("began", 1))
        await asyncio.sleep(0.5)
        assert tuple(await observer.fetchrow("SELECT term, timeline, cut_at FROM lease")) == (1, 1, None)
        await observer.execute("CREATE OR REPLACE FUNCTION database_timeline() RETURNS int LANGUAGE sql AS 'SELECT 2'")
        await terms.until(("began", 2))
        row = await observer.fetchrow("SELECT term, timeline, cut_at <= clock_timestamp() FROM lease")
        assert (tuple(row), told) == ((2, 2, True), [(1, 2, 2)])
        await observer.execute(
            "CREATE OR REPLACE FUNCTION database_timeline() RETURNS int LANGUAGE sql AS 'SELECT null::int'"
        )
        await asyncio.sleep(0.5)
        assert terms.log == [("began", 1), ("ended", 1), ("began", 2)], "what the server does not tell ends no term"
