"""Requests that were in flight when engines ended: which ends count as crashes, in the database."""

import asyncio

import pytest

from controller.store.core.database import Database
from controller.store.deployments.crashed_requests import read_ends, read_requests_at_ends, write_requests_at_ends
from support.database.ledger import add_deployment, add_host, add_instance, claim

REQUEST = b"r" * 32


async def ended(db: Database, *ranks: tuple[str, int | None], wrote_ago_s: float = 0.0) -> list[bool | None]:
    """What is read of a request at the end of an engine whose ranks end so, each with a reason and a code."""
    host = await add_host(db, "w", gpus=1, gib=400)
    await add_instance(db, await add_deployment(db, "d"), "i00", phase="running", epoch=1)
    await claim(db, host.gpus[0], "i00", 1024)
    async with db.transaction() as c:
        await write_requests_at_ends(c, [("i00", 1, REQUEST), ("i00", 1, REQUEST)])
        await c.execute("update requests_at_ends set at = at - make_interval(secs => $1)", wrote_ago_s)
        for rank, (reason, code) in enumerate(ranks):
            await c.execute(
                """insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, seq, session,
                                          reported_at)
                   values ('i00', 1, $1, $2, $3, nullif($4, ''), $5, 1, 1, clock_timestamp())""",
                rank,
                host.id,
                "exited" if reason else "running",
                reason,
                code,
            )
    async with db.transaction() as c:
        return [one.crashed for one in await read_requests_at_ends(c)]


@pytest.mark.parametrize("code", [1, 3, -11, -6, -9, 137, 139, None])
async def test_a_crash_or_a_signal(migrated: Database, code: int | None) -> None:
    assert await ended(migrated, ("exit", code)) == [True]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        *(("stopped", -9), ("stopped", 1), ("liveness", -9), ("agent_stopped", -15), ("disconnected", -9)),
        *(("gone", None), ("exit", -15), ("exit", -2), ("exit", 143), ("exit", 0)),
    ],
)
async def test_what_is_asked_for_or_not_seen_is_none(migrated: Database, reason: str, code: int | None) -> None:
    assert await ended(migrated, (reason, code)) == []


async def test_an_engine_that_goes_on_is_unknown(migrated: Database) -> None:
    assert await ended(migrated, ("", None)) == [None]


@pytest.mark.parametrize(
    ("ranks", "known"),
    [
        ((("exit", 1),), True),
        ((("exit", -9),), True),
        ((("exit", None), ("", None)), True),
        ((("exit", 0),), False),
        ((("stopped", -9),), False),
        ((("gone", None),), False),
        ((("", None),), False),
    ],
)
async def test_what_has_ended_by_itself(
    migrated: Database, ranks: tuple[tuple[str, int | None], ...], known: bool
) -> None:
    await ended(migrated, *ranks)
    async with migrated.transaction() as c:
        found = await read_ends(c, {("i00", 1), ("i00", 2), ("other", 1)})
    assert found.keys() == ({("i00", 1)} if known else set())
    assert all(0 <= age_s < 60 for age_s in found.values())


async def test_an_end_long_after_the_connection_is_another_one(migrated: Database) -> None:
    assert await ended(migrated, ("exit", -11), wrote_ago_s=120) == []


async def test_of_a_gang_the_first_end_is_the_cause(migrated: Database) -> None:
    assert await ended(migrated, ("exit", -11), ("stopped", -15)) == [True]


async def test_a_gang_that_is_stopped_has_not_crashed(migrated: Database) -> None:
    assert await ended(migrated, ("stopped", -15), ("exit", 1)) == []


async def test_a_gang_of_which_a_host_is_silent_is_unknown(migrated: Database) -> None:
    assert await ended(migrated, ("exit", 1), ("", None)) == [None]


async def test_what_is_known_outlives_the_instance(migrated: Database) -> None:
    assert await ended(migrated, ("exit", -11)) == [True]
    async with migrated.transaction() as c:
        await c.execute("delete from claims")
        await c.execute("delete from instances")
    async with migrated.transaction() as c:
        assert [one.crashed for one in await read_requests_at_ends(c)] == [True]
        await c.execute("update requests_at_ends set at = at - interval '11 min'")
        await write_requests_at_ends(c, [("other", 1, REQUEST)])
        assert [one.instance for one in await read_requests_at_ends(c)] == ["other"]


async def test_what_matters_no_more_is_not_read(migrated: Database) -> None:
    """Each gateway reads every other second, and a host that is gone may leave thousands of unknown ends."""
    assert await ended(migrated, ("", None), wrote_ago_s=10) == []
    async with migrated.transaction() as c:
        await c.execute("update requests_at_ends set crashed = true")
        assert [one.crashed for one in await read_requests_at_ends(c)] == [True]
        await c.execute("update requests_at_ends set at = at - interval '11 min'")
        assert await read_requests_at_ends(c) == []


async def test_gateways_may_write_the_same_requests_at_once(migrated: Database) -> None:
    """One client repeats a request at several gateways; they learn of the end in any order."""
    ends = [("i00", 1, b"%032d" % number) for number in range(5000)]

    async def write(order: list[tuple[str, int, bytes]]) -> None:
        async with migrated.transaction() as c:
            await write_requests_at_ends(c, order)

    await asyncio.gather(*(write(order) for order in (ends, ends[::-1], ends[1::2] + ends[::2])))
    async with migrated.transaction() as c:
        assert len(await read_requests_at_ends(c)) == len(ends)
