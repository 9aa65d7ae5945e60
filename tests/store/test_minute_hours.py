"""Packed hours: reports are the same with them and without, whatever comes late or is dropped."""

import json
import random
from datetime import timedelta

import pytest

from controller.api.resources.idle_report import would_free
from controller.store.core.database import Database
from controller.store.telemetry.idle_report import Sums, add_usage, days
from controller.store.telemetry.minute_hours import pack_hours
from controller.store.telemetry.partitions import SampleRetention, drop_partition, make_partitions
from schemas.manifest.policy import UtilizationPolicy
from support.database.history import at, rolled_up, sample, span
from support.database.idle_sums import plain_sums
from support.database.ledger import Host, add_deployment, add_host, rows

HOUR = 3600
DAY = 24 * HOUR
POLICY = UtilizationPolicy(min_gpu_utilization=40, time_window=600)
MINUTE = """
    insert into sample_minutes (minute, device, instance_id, mean, max, samples, covered_s)
    values ($1, $2, $3, $4, $5, 6, $6)
    on conflict (device, instance_id, minute) do update set mean = excluded.mean, max = excluded.max"""


@pytest.fixture
async def host(migrated: Database) -> Host:
    async with migrated.transaction() as c:
        await make_partitions(c, SampleRetention(samples_h=72, history_days=14))
        await c.execute("update rollup_progress set at = now()")
    return await add_host(migrated, "w", gpus=3, gib=40)


async def packed(db: Database, *, calls: int = 1000, portion: int = 500) -> bool:
    for _ in range(calls):
        async with db.transaction() as c:
            if await pack_hours(c, portion=portion):
                return True
    return False


async def answers(db: Database, begin: float, end: float) -> bytes:
    """What the report says, to the byte, once it is held to the sums in plain SQL."""
    sums = await summed(db, begin, end)
    async with db.snapshot() as c:
        plain = await plain_sums(c, at(begin), at(end), 40)
    assert {uid: s for uid, s in sums.items() if s[0]} == {
        uid: pytest.approx(s, rel=1e-9, abs=1e-6) for uid, s in plain.items() if s[0]
    }
    return json.dumps([sums, await would_free(db, at(begin), at(end), POLICY)], sort_keys=True).encode()


async def summed(db: Database, begin: float, end: float) -> dict[str, tuple[float, ...]]:
    sums = Sums()
    async with db.snapshot() as c:
        for since, until in days(at(begin), at(end)):
            await add_usage(c, sums, since, until, {}, 40)
    return {uid: (s.total.known_s, s.total.used_s, s.total.wasted_s) for uid, s in sums.spent.items()}


class History:
    """Two days of three GPUs: claims that last or are renewed, whole or shared, and minutes with gaps."""

    def __init__(self, db: Database, host: Host, seed: int) -> None:
        self._db = db
        self._host = host
        self._rng = random.Random(seed)  # noqa: S311 - test data
        self._series: list[tuple[str, str]] = []

    async def write(self) -> None:
        for n, gpu in enumerate(self._host.gpus):
            shared = self._rng.random() < 0.5
            self._series += [(gpu, ""), (gpu, f"i{n}")]
            uid = await add_deployment(self._db, f"d{n}")
            begin = -2.2 * DAY
            for epoch in range(1, self._rng.choice([2, 3, 6])):
                end = begin + self._rng.choice([3.0 * DAY, self._rng.uniform(600, DAY)])
                share = 0.25 if shared else None
                await span(self._db, gpu, f"i{n}", uid, begin, end, epoch=epoch, share=share, name=f"d{n}")
                begin = end + self._rng.choice([0.0, self._rng.uniform(1, 5000)])
        for series in self._series:
            first = self._rng.randrange(-2 * 1440, -1440)
            await self._minutes(series, range(first, 300, self._rng.choice([1, 1, 3])))

    async def late(self) -> None:
        """Minutes that change, and ones that come late."""
        for series in self._series:
            first = self._rng.randrange(-2 * 1440, 200)
            await self._minutes(series, range(first, first + 90, 7))

    async def _minutes(self, series: tuple[str, str], numbers: range) -> None:
        level = 0.0
        values = []
        for n in numbers:
            level = self._rng.uniform(0, 60) if self._rng.random() < 0.05 else level
            values.append((at(n * 60.0), *series, level / 2, level, self._rng.choice([60.0, 60.0, 31.25])))
        async with self._db.transaction() as c:
            await c.executemany(MINUTE, values)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_reports_are_the_same_to_the_byte(migrated: Database, host: Host, seed: int) -> None:
    history = History(migrated, host, seed)
    await history.write()
    begin, end = -1.5 * DAY - 17.25, 4 * HOUR + 1000.5
    upgraded = await answers(migrated, begin, end)
    assert not await packed(migrated, calls=40, portion=2)
    assert await answers(migrated, begin, end) == upgraded, "some hours are packed, one of them for some GPUs"
    await history.late()
    partly = await answers(migrated, begin, end)
    assert partly != upgraded
    assert await packed(migrated)
    assert await answers(migrated, begin, end) == partly
    await history.late()
    late = await answers(migrated, begin, end)
    await migrated.pool.execute("delete from packed_hours")
    assert await answers(migrated, begin, end) == late != partly, "late samples are in the packed hours"


async def test_late_samples_change_packed_hours(migrated: Database, host: Host) -> None:
    gpu = host.gpus[0]
    uid = await add_deployment(migrated, "d")
    await span(migrated, gpu, "i", uid, 0, HOUR)
    await sample(migrated, host, gpu, [(s, 0.0) for s in range(10, HOUR, 10)])
    await rolled_up(migrated)
    assert await packed(migrated)
    await answers(migrated, 0, HOUR)
    await sample(migrated, host, gpu, [(605.0, 90.0)])
    await rolled_up(migrated)
    assert (await summed(migrated, 0, HOUR))[uid][2] == pytest.approx(HOUR - 10 - 60)
    await answers(migrated, 0, HOUR)


async def test_packed_hours_go_with_their_minutes(migrated: Database, host: Host) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, host.gpus[0], "i", uid, -2 * DAY, 0)
    async with migrated.transaction() as c:
        await c.executemany(MINUTE, [(at(n * 60.0), host.gpus[0], "", 5, 5, 60) for n in range(-2880, 0)])
    assert await packed(migrated)
    whole = await answers(migrated, -2 * DAY, 0)
    oldest = at(-2 * DAY)
    async with migrated.transaction() as c:
        await drop_partition(c, f"sample_minutes_{oldest:%Y%m%d}")
    assert await answers(migrated, -2 * DAY, 0) != whole
    midnight = (oldest + timedelta(days=1)).replace(hour=0)
    assert await rows(migrated, "select 1 from minute_hours where hour < $1", midnight) == []
    assert await rows(migrated, "select 1 from packed_hours where hour >= $1 and hour < $2", oldest, midnight) == []


async def test_days_of_an_upgraded_database_get_their_place(migrated: Database, host: Host) -> None:
    """Packing waits for the partitions, which are made with those of the minutes."""
    for row in await rows(
        migrated, "select inhrelid::regclass as name from pg_inherits where inhparent = 'minute_hours'::regclass"
    ):
        await migrated.pool.execute(f"drop table {row['name']}")
    async with migrated.transaction() as c:
        await c.executemany(MINUTE, [(at(n * 60.0), host.gpus[0], "", 5, 5, 60) for n in range(120)])
    assert await packed(migrated, calls=1), "there is nothing that can be packed yet"
    async with migrated.transaction() as c:
        await make_partitions(c, SampleRetention(samples_h=1, history_days=1))
    assert await packed(migrated)
    assert len(await rows(migrated, "select 1 from minute_hours")) == 2
