"""Partitions: created before they are needed, dropped after their retention."""

import asyncio
from datetime import datetime

import asyncpg
import pytest

from controller.store.core.database import Database
from controller.store.telemetry.partitions import (
    PartitionMaintenance,
    PartitionRange,
    SampleRetention,
    drop_partition,
    find_old_partitions,
    make_partitions,
    samples_range,
)
from support.database.ledger import add_deployment, rows

HOUR_S = 3600


async def covered(db: Database) -> PartitionRange:
    async with db.transaction() as connection:
        found = await samples_range(connection)
        assert found is not None
        return found


async def now(db: Database) -> datetime:
    (row,) = await rows(db, "select clock_timestamp() as now")
    found: datetime = row["now"]
    return found


async def make(db: Database, keep: SampleRetention) -> None:
    async with db.transaction() as connection:
        await make_partitions(connection, keep)


async def old(db: Database, keep: SampleRetention) -> list[str]:
    async with db.connection() as connection:
        return await find_old_partitions(connection, keep)


async def test_they_reach_from_the_oldest_kept_to_a_day_ahead(migrated: Database) -> None:
    async with migrated.transaction() as connection:
        assert await samples_range(connection) is None
    keep = SampleRetention(samples_h=8, history_days=2)
    await asyncio.gather(*(make(migrated, keep) for _ in range(4)))  # controllers that start together
    present, moment = await covered(migrated), await now(migrated)
    assert 8 * HOUR_S <= (moment - present.begin).total_seconds() < 11 * HOUR_S
    assert (present.end - moment).total_seconds() > 24 * HOUR_S
    await migrated.pool.execute(
        "insert into sample_minutes (minute, device, mean, max, samples, covered_s)"
        " select now() + n * interval '8 hours', 'g', 1, 1, 1, 1 from generate_series(-1, 3) n"
    )
    before = await rows(migrated, "select relname from pg_class where relispartition order by 1")
    await make(migrated, keep)
    assert await rows(migrated, "select relname from pg_class where relispartition order by 1") == before


async def test_a_longer_window_in_use_keeps_more(migrated: Database) -> None:
    await make(migrated, SampleRetention(samples_h=2, history_days=1))
    assert (await now(migrated) - (await covered(migrated)).begin).total_seconds() < 5 * HOUR_S
    policy = {"min_gpu_utilization": 5, "time_window": "20h"}
    await add_deployment(migrated, "d", utilization_policy=policy)
    await make(migrated, SampleRetention(samples_h=2, history_days=1))
    assert (await now(migrated) - (await covered(migrated)).begin).total_seconds() >= 21 * HOUR_S
    assert await old(migrated, SampleRetention(samples_h=2, history_days=1)) == []


async def test_partitions_past_their_retention_are_dropped(migrated: Database) -> None:
    await make(migrated, SampleRetention(samples_h=30, history_days=3))
    short = SampleRetention(samples_h=2, history_days=1)
    gone = await old(migrated, short)
    assert len([name for name in gone if name.startswith("samples_")]) in (9, 10)
    partitions = PartitionMaintenance(migrated, short)
    await partitions.round()
    assert partitions.ready.is_set()
    assert await old(migrated, short) == []
    assert (await now(migrated) - (await covered(migrated)).begin).total_seconds() >= 2 * HOUR_S


async def test_a_drop_waits_only_briefly_for_readers(migrated: Database) -> None:
    await make(migrated, SampleRetention(samples_h=8, history_days=1))
    async with migrated.snapshot() as reader:
        assert await reader.fetchval("select count(*) from samples") == 0
        present = await covered(migrated)
        async with migrated.connection() as connection, connection.transaction():
            with pytest.raises(asyncpg.LockNotAvailableError):
                await drop_partition(connection, f"samples_{present.begin:%Y%m%d_%H}")
