"""One-minute rollups: complete with late samples, and unchanged by repetition."""

import random

import pytest

from controller.decide.policies.windows import window_of
from controller.domain.telemetry.series import Series
from controller.store.core.database import Database
from support.database.history import T0, at, partitions, rolled_up, sample
from support.database.ledger import GIB, Host, add_deployment, add_host, add_instance, claim, rows

DEVICE = "GPU-w-0"


@pytest.fixture
async def host(migrated: Database) -> Host:
    await partitions(migrated)
    return await add_host(migrated, "w", gpus=2, gib=40)


async def minutes_of(db: Database, instance: str = "") -> dict[int, tuple[float, float, int, float]]:
    """By the minute after T0: mean, max, samples, seconds spoken for."""
    found = await rows(db, "select * from sample_minutes where instance_id = $1 and device = $2", instance, DEVICE)
    return {
        round((r["minute"] - T0).total_seconds() / 60): (
            round(r["mean"], 1), round(r["max"], 1), r["samples"], round(r["covered_s"], 1)
        )
        for r in found
    }  # fmt: skip


def steady(begin: float, end: float, value: float = 0.0, every: float = 10.0) -> list[tuple[float, float]]:
    return [(begin + n * every, value) for n in range(round((end - begin) / every))]


async def test_a_minutes_figures_are_of_the_samples_that_cover_it(migrated: Database, host: Host) -> None:
    await sample(migrated, host, DEVICE, [*steady(5, 65, 20.0), (65, 80.0), *steady(75, 125, 0.0)])
    await rolled_up(migrated)
    found = await minutes_of(migrated)
    # The peak at 65 s is of the time from 55 s on: it may have been in either minute.
    assert found[0] == (25.0, 80.0, 7, 60.0)
    assert found[1][1:] == (80.0, 6, 55.0)
    assert found[-1] == (20.0, 20.0, 1, 5.0), "a sample covers its own period"


async def test_a_gap_is_not_covered(migrated: Database, host: Host) -> None:
    await sample(migrated, host, DEVICE, [(60, 0.0), (100, 0.0), (120, 0.0)])
    await rolled_up(migrated)
    assert (await minutes_of(migrated))[1] == (0.0, 0.0, 2, 20.0)


async def test_late_samples_change_the_minutes_that_they_cover(migrated: Database, host: Host) -> None:
    await sample(migrated, host, DEVICE, steady(5, 125))
    await rolled_up(migrated)
    before = await minutes_of(migrated)
    await sample(migrated, host, DEVICE, [(62, 90.0)])
    await rolled_up(migrated)
    after = await minutes_of(migrated)
    assert (before[0][1], before[1][1]) == (0.0, 0.0)
    assert (after[0][1], after[1][1]) == (90.0, 90.0)
    assert after[-1] == before[-1]


async def test_portions_and_repetition_make_no_difference(migrated: Database, host: Host) -> None:
    for begin in (600, 0, 300):  # out of order, as a backfill is
        await sample(migrated, host, DEVICE, steady(begin, begin + 290, begin / 10))
    assert await rolled_up(migrated, portion=7) > 3
    by_portions = await minutes_of(migrated)
    async with migrated.transaction() as c:
        await c.execute("update rollup_progress set horizon = '0'")
    assert await rolled_up(migrated) == 1
    assert await minutes_of(migrated) == by_portions
    assert len(by_portions) > 14


async def test_samples_that_commit_later_are_rolled_up_later(migrated: Database, host: Host) -> None:
    async with migrated.transaction() as c:
        await c.execute(
            "insert into samples (at, device, worker_id, seq, period_s, mean, max) values ($1, $2, $3, 1, 10, 7, 7)",
            at(30), DEVICE, host.id,
        )  # fmt: skip
        await sample(migrated, host, DEVICE, [(90, 0.0)])  # begun later, committed earlier
        await rolled_up(migrated)
        assert (await minutes_of(migrated)).get(0) is None
    await rolled_up(migrated)
    assert (await minutes_of(migrated))[0] == (7.0, 7.0, 1, 10.0)


async def test_only_shared_claims_have_their_own_minutes(migrated: Database, host: Host) -> None:
    uid = await add_deployment(migrated, "d")
    for name in ("a", "b"):
        await add_instance(migrated, uid, name, phase="running", epoch=1)
        await claim(migrated, DEVICE, name, 8 * GIB)
    working, silent = ["a", 1, 0, 70.0, 75.0, 0], ["b", 1, 0, None, None, None]
    await sample(migrated, host, DEVICE, steady(10, 70, 80.0), processes=[working, silent])
    async with migrated.transaction() as c:
        await c.execute("delete from claims")  # its span records it as well
    await rolled_up(migrated)
    assert (await minutes_of(migrated, "a"))[0] == (70.0, 75.0, 6, 60.0)
    assert await minutes_of(migrated, "b") == {}, "unknown is not zero"
    assert (await minutes_of(migrated))[0] == (80.0, 80.0, 6, 60.0)


async def test_an_exclusive_claims_minutes_are_its_gpus(migrated: Database, host: Host) -> None:
    uid = await add_deployment(migrated, "d")
    await add_instance(migrated, uid, "a", phase="running", epoch=1)
    await claim(migrated, DEVICE, "a", 40 * GIB, exclusive=True)
    await sample(migrated, host, DEVICE, steady(10, 70, 50.0), processes=[["a", 1, 0, 50.0, 50.0, 0]])
    await rolled_up(migrated)
    assert await minutes_of(migrated, "a") == {}
    assert (await minutes_of(migrated))[0][0] == 50.0


async def test_a_claim_that_is_renewed_leaves_spans_that_touch(migrated: Database, host: Host) -> None:
    assert host.gpus[0] == DEVICE
    uid = await add_deployment(migrated, "d")
    await add_instance(migrated, uid, "a", phase="running", epoch=1)
    await claim(migrated, DEVICE, "a", 8 * GIB)
    async with migrated.transaction() as c:
        await c.execute("update instances set running_since = now() where id = 'a'")
        await c.execute("delete from claims")
        await c.execute("insert into claims (device, instance_id, epoch, memory_mib) values ($1, 'a', 2, 8192)", DEVICE)
        await c.execute("update instances set epoch = 2, running_since = null where id = 'a'")
    (ended,) = await rows(migrated, "select * from claim_spans")
    (held,) = await rows(migrated, "select * from claims")
    assert ended["ended_at"] == held["created_at"] > ended["began_at"]
    assert (ended["epoch"], ended["running_since"], ended["device_mib"]) == (1, held["created_at"], 40 * GIB)


async def test_minutes_cover_what_verdicts_cover(migrated: Database, host: Host) -> None:
    """The rule of coverage in SQL and the one in Python, over pieces of any length, some of which overlap."""
    rng = random.Random(11)  # noqa: S311 - test data
    ages = sorted(rng.uniform(0, 590) for _ in range(60))
    pieces = [(end, rng.choice([0.0, 0.5, 4.0, 10.0, 25.0, None])) for end in ages]
    series = Series()
    async with migrated.transaction() as c:
        for end, read_s in pieces:
            await c.execute(
                "insert into samples (at, device, worker_id, seq, period_s, read_s, mean, max)"
                " values ($1, $2, $3, 1, 10, $4, 7, 7)",
                at(end), DEVICE, host.id, read_s,
            )  # fmt: skip
            series.put(end, 10.0, 7, 7, read_s)
    await rolled_up(migrated)
    found = await minutes_of(migrated)
    for minute in range(10):
        covered_s = window_of(series, 60.0 * (minute + 1), 60.0).covered_s
        # A sample that ends after the minute covers a part of it as well.
        after = [(b, e) for b, e in zip(series.since, series.at, strict=True) if b < 60 * (minute + 1) < e]
        covered_s += sum(60 * (minute + 1) - max(float(b), 60 * minute) for b, _ in after)
        assert found.get(minute, (0, 0, 0, 0.0))[3] == pytest.approx(covered_s, abs=0.11), minute
