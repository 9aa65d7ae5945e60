"""Pending instances in admission order, with a bound for each deployment."""

from controller.store.core.database import Database
from controller.store.placement.pass_reads import read_pending
from support.database.ledger import GIB, add_deployment, add_host, add_instance

NEED = {"memory_mib": GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}


async def test_thousands_of_one_deployment_do_not_starve_the_others(migrated: Database) -> None:
    for name, count, priority in (("many", 5, 500), ("one", 1, 100)):
        uid = await add_deployment(migrated, name, priority=priority)
        for number in range(count):
            await add_instance(migrated, uid, f"{name}-{number}")
    async with migrated.connection() as connection:
        await connection.execute("update revisions set need = $1", NEED)
        await connection.execute("update instances set not_before = now() + interval '1 h' where id = 'many-0'")
        few = await read_pending(connection, 3, failures_per_worker=3, of_deployment=2)
        all_ = await read_pending(connection, 5, failures_per_worker=3, of_deployment=2)
    assert [one.id for one in few.instances] == ["many-1", "many-2", "one-0"], "two of each, since five wait"
    assert few.more
    assert [one.id for one in all_.instances] == ["many-1", "many-2", "many-3", "many-4", "one-0"]
    assert not all_.more
    assert all_.next_due_s is not None
    assert 3500 < all_.next_due_s <= 3600


async def test_of_a_gang_the_worker_is_avoided_whose_process_failed(migrated: Database) -> None:
    hosts = [await add_host(migrated, name) for name in ("a", "b", "c")]
    uid = await add_deployment(migrated, "gang")
    await add_instance(migrated, uid, "gang-1", epoch=1)
    async with migrated.connection() as connection:
        await connection.execute("update revisions set need = $1", NEED)
        await connection.execute("update instances set failures = 3")
        for rank, (host, reason, code) in enumerate(
            zip(hosts, ("stopped", "exited", "stopped"), (-15, 1, 0), strict=True)
        ):
            await connection.execute(
                """insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, seq, session)
                   values ('gang-1', 1, $1, $2::uuid, 'exited', $3, $4, 1, 1)""",
                rank,
                host.id,
                reason,
                code,
            )
        (one,) = (await read_pending(connection, 5, failures_per_worker=3)).instances
    assert one.avoid_worker == hosts[1].id
