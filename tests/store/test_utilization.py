"""Series for graphs: the highest value of each slot, gaps without coverage, own parts of shared GPUs."""

import pytest

from controller.store.core.database import Database
from controller.store.core.refusals import NotFoundError
from controller.store.telemetry.utilization import (
    SLOTS,
    read_utilization,
    tracks_of_deployment,
    tracks_of_gpus,
    tracks_of_instance,
    tracks_of_worker,
)
from support.database.history import T0, minutes, partitions, sample
from support.database.ledger import GIB, Host, add_deployment, add_host, add_instance, claim, rows

A, B = "GPU-w-0", "GPU-w-1"


@pytest.fixture
async def host(migrated: Database) -> Host:
    await partitions(migrated)
    return await add_host(migrated, "w", gpus=2, gib=40)


async def now_s(db: Database) -> float:
    """Seconds after T0."""
    (row,) = await rows(db, "select now() as now")
    return (row["now"] - T0).total_seconds()


async def test_slots_hold_the_highest_and_gaps_stay_gaps(migrated: Database, host: Host) -> None:
    now = await now_s(migrated)
    ages = [age for age in range(5, 600, 10) if not 200 < age < 400]
    await sample(migrated, host, A, [(now - age, 90.0 if age == 105 else 5.0) for age in ages])
    async with migrated.snapshot() as c:
        view = await read_utilization(c, await tracks_of_gpus(c, [A, "GPU-unknown", B]), 600)
    first, second = view.series
    assert (first.gpu, first.worker, second.gpu) == (A, "w", B)
    assert second.values == [None] * SLOTS
    assert first.values.count(90.0) in (1, 2)
    assert 48 <= next(n for n, v in enumerate(first.values) if v == 90.0) <= 50
    # From 395 s to 205 s before, a sample speaks only for the last 10 s of it.
    assert 17 <= first.values.count(None) <= 20
    assert first.values[5] == first.values[58] == 5.0


async def test_a_long_window_is_read_from_the_minutes_and_ends_with_samples(migrated: Database, host: Host) -> None:
    now = await now_s(migrated)
    await minutes(migrated, A, [(60.0 * n, 40.0) for n in range(300)])
    await sample(migrated, host, A, [(now - 10, 70.0)])
    async with migrated.snapshot() as c:
        (series,) = (await read_utilization(c, await tracks_of_gpus(c, [A]), 8 * 3600)).series
    assert series.values[-1] == 70.0
    assert series.values[30] == 40.0
    assert series.values[0] is None


async def test_an_instance_has_its_own_part_since_it_holds_it(migrated: Database, host: Host) -> None:
    uid = await add_deployment(migrated, "d")
    for name, device, exclusive in (("shares", A, False), ("alone", B, True)):
        await add_instance(migrated, uid, name, phase="running", epoch=1)
        await claim(migrated, device, name, (40 if exclusive else 8) * GIB, exclusive=exclusive)
    async with migrated.transaction() as c:
        await c.execute("alter table claims disable trigger claims_no_update")
        await c.execute("update claims set created_at = now() - interval '5 min'")
    now = await now_s(migrated)
    ages = [(now - age, 95.0) for age in range(0, 600, 10)]
    for device in (A, B):
        await sample(migrated, host, device, ages, processes=[["shares", 1, 0, 1.0, 2.0, 0]])
    async with migrated.snapshot() as c:
        shared, uid_read = await tracks_of_instance(c, "shares")
        whole, _ = await tracks_of_instance(c, "alone")
        both, _ = await tracks_of_deployment(c, "d")
        views = [await read_utilization(c, tracks, 600) for tracks in (shared, whole, both)]
        with pytest.raises(NotFoundError, match="instance"):
            await tracks_of_instance(c, "unknown")
        with pytest.raises(NotFoundError, match="deployment"):
            await tracks_of_deployment(c, "unknown")
        with pytest.raises(NotFoundError, match="worker"):
            await tracks_of_worker(c, "unknown")
        assert [t.device for t in await tracks_of_worker(c, "w")] == [A, B]
    assert uid_read == uid
    own, gpu = views[0].series[0], views[1].series[0]
    assert (own.instance, gpu.instance) == ("shares", "")
    assert (own.values[-2], gpu.values[-2]) == (2.0, 95.0)
    assert own.values[10] is gpu.values[10] is None, "what ran there before is not the instance's"
    assert len(views[2].series) == 2
