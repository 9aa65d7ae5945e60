"""Liveness and readings: set-based, fenced by the session, never going backwards."""

from controller.store.core.database import Database
from controller.store.workers.heartbeats import ConnectionState, ForeignUse, Reading, write_liveness, write_readings
from support.database.ledger import Host, add_deployment, add_host, add_instance, rows


async def see(db: Database, *seen: ConnectionState) -> set[str]:
    async with db.transaction() as c:
        return await write_liveness(c, seen)


def seen(host: Host, session: int = 1, *, connected: bool = True, age_s: float = 0.0) -> ConnectionState:
    return ConnectionState(host.id, session, connected, clean=False, age_s=age_s)


async def test_connections_are_written_together_by_the_databases_clock(migrated: Database) -> None:
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


async def read(db: Database, host: Host, *used: int | None) -> list[ForeignUse]:
    async with db.transaction() as c:
        return await write_readings(
            c, [Reading(host.id, uuid, mib, 0.0, 0.0) for uuid, mib in zip(host.gpus, used, strict=True)]
        )


async def test_foreign_memory_is_reported_when_it_appears_and_disappears(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=3, gib=40)
    first, second, third = host.gpus
    come = await read(migrated, host, 30_000, 600, 40 * 1024)  # 600 MiB of 40 GiB are the driver's own
    assert come == [ForeignUse(host.id, first, 0, 30_000, 0), ForeignUse(host.id, third, 2, 40 * 1024, 0)]
    assert (
        await read(migrated, host, 30_100, 700, None) == []
    )  # a small change is not reported, and unknown is not zero
    assert await read(migrated, host, 0, 0, 40 * 1024) == [ForeignUse(host.id, first, 0, 0, 30_000)]
    query = "select uuid, foreign_mib from devices where kind = 'gpu' order by uuid"
    assert await rows(migrated, query) == [
        {"uuid": first, "foreign_mib": 0},
        {"uuid": second, "foreign_mib": 0},
        {"uuid": third, "foreign_mib": 40 * 1024},
    ]


async def test_what_a_claim_explains_is_not_foreign_even_when_it_was_just_released(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=1, gib=40)
    uid = await add_deployment(migrated, "d")
    instance = await add_instance(migrated, uid, "i")
    async with migrated.transaction() as c:
        await c.execute(
            "insert into claims (device, instance_id, epoch, memory_mib) values ($1, $2, 1, 20000)",
            host.gpus[0],
            instance,
        )
    assert await read(migrated, host, 20_000) == []
    async with migrated.transaction() as c:
        await c.execute("delete from claims")
    assert await read(migrated, host, 20_000) == []  # read before the process ended, written after its claim had gone
    assert await read(migrated, host, 20_000) == [ForeignUse(host.id, host.gpus[0], 0, 20_000, 0)]  # but not twice
