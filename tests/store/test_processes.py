"""Process reports against the ledger: which ones count, strays, and concurrent batches."""

import asyncio
import random
import uuid

from controller.store.core.database import Database
from controller.store.deployments.processes import SessionReport, Written, end_missing, lock_sessions, write_reports
from rig.agent_messages import process
from schemas.wire import ProcessReport
from support.database.ledger import Host, add_deployment, add_host, add_instance, claim, rows


async def set_up(db: Database, n: int = 1) -> tuple[Host, list[str]]:
    host = await add_host(db, "w", gpus=1, gib=400)
    uid = await add_deployment(db, "d")
    names = [f"i{k:02}" for k in range(n)]
    for name in names:
        await add_instance(db, uid, name, phase="running", epoch=1)
        await claim(db, host.gpus[0], name, 1024)
    return host, names


async def write(db: Database, host: Host, *reports: ProcessReport, session: int = 1) -> Written:
    async with db.transaction() as c:
        return await write_reports(c, [SessionReport(host.id, session, report) for report in reports])


async def states(db: Database) -> list[tuple[object, ...]]:
    return [tuple(r.values()) for r in await rows(db, "select state, seq, session from processes order by instance_id")]


async def test_a_higher_session_wins_whatever_the_sequence(migrated: Database) -> None:
    host, _ = await set_up(migrated)
    assert len((await write(migrated, host, process("i00", "running", seq=50))).deployments) == 1
    assert (await write(migrated, host, process("i00", "unhealthy", seq=50))).deployments == set()
    assert len((await write(migrated, host, process("i00", "unhealthy", seq=3), session=2)).deployments) == 1
    await write(migrated, host, process("i00", "running", seq=51))
    assert await states(migrated) == [("unhealthy", 3, 2)]


async def test_the_time_of_an_exit_is_that_of_its_first_report(migrated: Database) -> None:
    """An agent that repeats an exit, or changes its word, moves no end to a later time."""
    host, _ = await set_up(migrated)
    await write(migrated, host, process("i00", "running", seq=1))
    await write(migrated, host, process("i00", "exited", seq=2, reason="gone"))
    (first,) = await rows(migrated, "select reported_at from processes")
    await write(migrated, host, process("i00", "exited", seq=3, reason="exit"))
    (again,) = await rows(migrated, "select reported_at, reason from processes")
    assert again == {"reported_at": first["reported_at"], "reason": "exit"}


async def test_one_batch_may_report_a_process_twice(migrated: Database) -> None:
    host, _ = await set_up(migrated)
    await write(migrated, host, process("i00", "unhealthy", seq=2), process("i00", "starting", seq=1))
    assert await states(migrated) == [("unhealthy", 2, 1)]


async def test_strays(migrated: Database) -> None:
    host, _ = await set_up(migrated)
    written = await write(
        migrated,
        host,
        process("i00", "running", seq=1),
        process("i00", "running", seq=2, epoch=2),
        process("i00", "running", seq=3, rank=1),
        process("unknown", "starting", seq=4),
        process("unknown", "exited", seq=5, epoch=2),
    )
    assert sorted((s.instance, s.epoch, s.rank) for s in written.strays) == [
        ("i00", 1, 1),
        ("i00", 2, 0),
        ("unknown", 1, 0),
    ]
    assert await states(migrated) == [("running", 1, 1)]


async def test_the_exit_of_a_command_that_never_ran_is_recorded(migrated: Database) -> None:
    host, _ = await set_up(migrated)
    async with migrated.transaction() as c:
        await c.execute("delete from claims")
    exited = process("i00", "exited", seq=1, reason="gone")
    await write(migrated, host, exited)
    assert await states(migrated) == []
    async with migrated.transaction() as c:
        await c.execute(
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
               select id, 'i00', 1, 0, 'stop', '{}' from workers"""
        )
    await write(migrated, host, exited)
    assert await states(migrated) == [("exited", 1, 1)]


async def test_only_the_newest_session_is_held(migrated: Database) -> None:
    host, _ = await set_up(migrated)
    async with migrated.transaction() as c:
        assert await lock_sessions(c, [(host.id, 1), (host.id, 0)]) == {(host.id, 1)}
        await c.execute("update workers set session = 2")
        assert await lock_sessions(c, [(host.id, 1)]) == set()


async def test_a_hello_waits_for_a_batch_that_holds_the_session(migrated: Database) -> None:
    host, _ = await set_up(migrated)

    async def raise_session() -> None:
        async with migrated.transaction() as c:
            await c.execute("update workers set session = session + 1")

    async with migrated.transaction() as c:
        await lock_sessions(c, [(host.id, 1)])
        hello = asyncio.create_task(raise_session())
        async with migrated.connection() as other:
            waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            async with asyncio.timeout(10):
                while not await other.fetchval(waits):  # noqa: ASYNC110 - waiting for a lock sets no event
                    await asyncio.sleep(0.01)
        assert not hello.done()
        await write_reports(c, [SessionReport(host.id, 1, process("i00", seq=1))])
    await hello
    assert await states(migrated) == [("running", 1, 1)]


async def test_processes_missing_from_a_hello_end(migrated: Database) -> None:
    host, names = await set_up(migrated, 3)
    await write(migrated, host, *(process(name, seq=n) for n, name in enumerate(names)))
    async with migrated.transaction() as c:
        gone = await end_missing(c, host.id, 2, [process("i01", seq=1)])
        assert sorted(instance for _, instance, _, _ in gone) == ["i00", "i02"]
        assert await end_missing(c, host.id, 2, []) != []
        assert await end_missing(c, host.id, 2, []) == []


async def test_accepted_starts_that_a_first_hello_leaves_out_have_ended(migrated: Database) -> None:
    """After a loss of commits, or a boot. What was not sent, what is named and what has no claim stay as they are."""
    host, names = await set_up(migrated, 4)
    open_, named, lost, unclaimed = names
    async with migrated.transaction() as c:
        await c.executemany(
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload, state)
               values ($1, $2, 1, 0, 'start', '{}', $3)""",
            [(uuid.UUID(host.id), name, "open" if name == open_ else "accepted") for name in names],
        )
        await c.execute("delete from claims where instance_id = $1", unclaimed)
        hello = [process(named, seq=1)]
        assert await end_missing(c, host.id, 2, hello) == [], "a report may be on its way"
        gone = await end_missing(c, host.id, 2, hello, names_all=True)
        assert [(instance, epoch, rank) for _, instance, epoch, rank in gone] == [(lost, 1, 0)]
        assert await end_missing(c, host.id, 3, hello, names_all=True) == []
    assert await states(migrated) == [("exited", 0, 2)]
    assert (await write(migrated, host, *hello)).strays == []


async def test_batches_that_meet_do_not_block_one_another(migrated: Database) -> None:
    """Eight writers with the same processes, each in an order of its own."""
    host, names = await set_up(migrated, 24)
    rng = random.Random(7)  # noqa: S311 - shuffles a test's rows

    async def writer(n: int) -> None:
        for k in range(10):
            shuffled = rng.sample(names, len(names))
            await write(migrated, host, *(process(name, seq=100 * n + k) for name in shuffled))

    await asyncio.gather(*(writer(n) for n in range(8)))
    assert {state for state, _, _ in await states(migrated)} == {"running"}
    assert [seq for _, seq, _ in await states(migrated)] == [709] * 24
