"""Liveness and readings: set-based, fenced by the session, never going backwards."""

from gpuward.controller.store.database import Database
from gpuward.controller.store.liveness import Reading, Seen, write_readings, write_seen
from support.ledger import Host, add_host, rows


async def see(db: Database, *seen: Seen) -> set[str]:
    async with db.transaction() as c:
        return await write_seen(c, seen)


def seen(host: Host, session: int = 1, *, connected: bool = True, age_s: float = 0.0) -> Seen:
    return Seen(host.id, session, connected, clean=False, age_s=age_s)


async def test_many_are_written_at_once_by_the_databases_clock(migrated: Database) -> None:
    hosts = [await add_host(migrated, f"w{n}", gpus=0) for n in range(5)]
    written = await see(migrated, *(seen(host, age_s=10.0) for host in hosts))
    assert written == {host.id for host in hosts}
    ages = await rows(migrated, "select extract(epoch from clock_timestamp() - last_seen) as age from worker_liveness")
    assert all(10 <= row["age"] < 15 for row in ages)


async def test_an_older_session_and_a_deleted_worker_write_nothing(migrated: Database) -> None:
    host, gone = await add_host(migrated, "w", gpus=0), await add_host(migrated, "gone", gpus=0)
    async with migrated.transaction() as c:
        await c.execute("update workers set session = 2")
        await c.execute("update workers set deleted_at = now() where name = 'gone'")
    assert await see(migrated, seen(host, 2), seen(gone, 2)) == {host.id}
    assert await see(migrated, seen(host, 1, connected=False)) == set()
    assert await rows(migrated, "select session, connected from worker_liveness") == [{"session": 2, "connected": True}]


async def test_readings_are_the_latest_of_the_workers_own_devices(migrated: Database) -> None:
    one, two = await add_host(migrated, "one", gpus=1), await add_host(migrated, "two", gpus=1)
    async with migrated.transaction() as c:
        await write_readings(
            c,
            [
                Reading(one.id, one.gpus[0], 100, 40.0, 1.0),
                Reading(one.id, two.gpus[0], 999, 99.0, 0.0),
                Reading(one.id, "GPU-unheard-of", 1, 1.0, 0.0),
            ],
        )
        await write_readings(c, [Reading(one.id, one.gpus[0], 1, 1.0, 60.0)])
    query = "select device, used_mib, utilization from device_readings"
    assert await rows(migrated, query) == [{"device": one.gpus[0], "used_mib": 100, "utilization": 40.0}]
    async with migrated.transaction() as c:
        await write_readings(c, [Reading(one.id, one.gpus[0], None, None, 0.0)])
    assert await rows(migrated, query) == [{"device": one.gpus[0], "used_mib": None, "utilization": None}]
