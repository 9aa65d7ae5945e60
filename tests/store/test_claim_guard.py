"""The database refuses invalid claims, in any order, one by one or together."""

import asyncio
import itertools

import asyncpg
import pytest

from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, rows

GPU = "GPU-w-0"
REFUSED = (asyncpg.CheckViolationError, asyncpg.RestrictViolationError)


@pytest.fixture
async def db(migrated: Database) -> Database:
    await add_host(migrated, "w", gpus=2, gib=40)
    uid = await add_deployment(migrated, "d")
    for n in range(12):
        await add_instance(migrated, uid, f"i{n}", phase="running", epoch=1)
    return migrated


async def counters(db: Database) -> tuple[int, int, int]:
    (row,) = await rows(db, "select claimed_mib, claims, exclusive_claims from devices where uuid = $1", GPU)
    (recount,) = await rows(
        db,
        """select coalesce(sum(memory_mib), 0)::bigint as claimed_mib, count(*) as claims,
                  count(*) filter (where exclusive) as exclusive_claims from claims where device = $1""",
        GPU,
    )
    assert row == recount
    return row["claimed_mib"], row["claims"], row["exclusive_claims"]


WHOLE = (40 * GIB, True)
HALF = (20 * GIB, False)
MOST = (36 * GIB, False)


@pytest.mark.parametrize("order", [*itertools.permutations((WHOLE, HALF, MOST)), (WHOLE, WHOLE), (HALF, HALF, HALF)])
async def test_mixed_kinds_in_every_order(db: Database, order: tuple[tuple[int, bool], ...]) -> None:
    used, alone, count = 0, False, 0
    for n, (mib, exclusive) in enumerate(order):
        fits = not alone and used + mib <= 40 * GIB and not (exclusive and count)
        if fits:
            await claim(db, GPU, f"i{n}", mib, exclusive=exclusive)
            used, alone, count = used + mib, alone or exclusive, count + 1
        else:
            with pytest.raises(REFUSED):
                await claim(db, GPU, f"i{n}", mib, exclusive=exclusive)
        assert await counters(db) == (used, count, int(alone))


async def test_a_batch_is_refused_whole(db: Database) -> None:
    with pytest.raises(REFUSED):
        async with db.transaction() as c:
            await c.execute(
                """insert into claims (device, instance_id, epoch, memory_mib)
                   select 'GPU-w-0', 'i' || n, 1, $1 from generate_series(0, 2) n""",
                20 * GIB,
            )
    assert await counters(db) == (0, 0, 0)


async def test_an_exclusive_claim_takes_the_whole_device(db: Database) -> None:
    with pytest.raises(REFUSED):
        await claim(db, GPU, "i0", 20 * GIB, exclusive=True)


async def test_a_gpu_in_mig_mode_is_not_claimable(db: Database) -> None:
    async with db.transaction() as c:
        await c.execute("update devices set mig_mode = true where uuid = $1", GPU)
    with pytest.raises(REFUSED):
        await claim(db, GPU, "i0", 1)


async def test_the_same_instance_cannot_claim_a_device_twice_in_an_epoch(db: Database) -> None:
    await claim(db, GPU, "i0", 1)
    with pytest.raises(asyncpg.UniqueViolationError):
        await claim(db, GPU, "i0", 1)


@pytest.mark.parametrize(
    "statement",
    [
        "update claims set memory_mib = 1",
        "truncate claims",
        "truncate devices cascade",
        "update devices set claimed_mib = memory_mib + 1 where uuid = 'GPU-w-0'",
        "update devices set memory_mib = 1 where uuid = 'GPU-w-0'",
        "delete from instances where id = 'i0'",
    ],
)
async def test_writes_that_bypass_the_guard_are_refused(db: Database, statement: str) -> None:
    await claim(db, GPU, "i0", 20 * GIB)
    with pytest.raises((*REFUSED, asyncpg.ForeignKeyViolationError)):
        async with db.transaction() as c:
            await c.execute(statement)
    assert await counters(db) == (20 * GIB, 1, 0)


async def test_released_capacity_can_be_claimed_again(db: Database) -> None:
    await claim(db, GPU, "i0", 40 * GIB, exclusive=True)
    async with db.transaction() as c:
        await c.execute("delete from claims where instance_id = 'i0'")
    assert await counters(db) == (0, 0, 0)
    await claim(db, GPU, "i1", 36 * GIB)


async def test_writers_at_once_never_overclaim_and_never_deadlock(db: Database) -> None:
    """Eight writers, both devices in both orders, exclusive and shared: all accepted claims fit."""

    async def write(n: int) -> int:
        done = 0
        for turn in range(12):
            pair = ["GPU-w-0", "GPU-w-1"] if (n + turn) % 2 else ["GPU-w-1", "GPU-w-0"]
            exclusive = n % 4 == 0
            try:
                async with db.transaction() as c:
                    await c.execute(
                        """insert into claims (device, instance_id, epoch, memory_mib, exclusive)
                           select device, $2, $3, $4, $5 from unnest($1::text[]) with ordinality x (device, n)
                            order by n""",
                        pair,
                        f"i{n}",
                        turn,
                        40 * GIB if exclusive else 9 * GIB,
                        exclusive,
                    )
                done += 1
                await asyncio.sleep(0)
                async with db.transaction() as c:
                    await c.execute("delete from claims where instance_id = $1", f"i{n}")
            except asyncpg.CheckViolationError:
                pass
        return done

    done = await asyncio.gather(*(write(n) for n in range(8)))
    assert sum(done) > 0
    assert await counters(db) == (0, 0, 0)
