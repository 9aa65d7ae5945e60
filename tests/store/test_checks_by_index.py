"""A leader's transactions check foreign keys by index, also where the check was planned while the table was small."""

from typing import Any

from controller.runtime.lease import check_term, read_term
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, add_instance

FEW, MANY = 8, 400


async def _command(connection: Any, worker: str, instances: list[str]) -> None:
    """Start commands for these, as a leader writes them."""
    async with connection.transaction():
        await check_term(connection, await read_term(connection))
        await connection.execute(
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
               select $1, id, 1, 0, 'start', '{}' from unnest($2::text[]) id""",
            worker,
            instances,
        )


async def _rows_read_whole(connection: Any) -> int:
    """How many rows of `instances` were read by scans of the whole table."""
    await connection.execute("select pg_stat_force_next_flush()")
    return int(await connection.fetchval("select seq_tup_read from pg_stat_user_tables where relname = 'instances'"))


async def test_a_burst_after_quiet_reads_no_whole_table_for_each_row(migrated: Database) -> None:
    worker = (await add_host(migrated, "w")).id
    uid = await add_deployment(migrated, "d")
    async with migrated.connection() as connection:
        for n in range(FEW):
            await add_instance(migrated, uid, f"few-{n}")
        await connection.execute("vacuum analyze instances")
        for n in range(FEW):  # so often that the plan of the check is kept
            await _command(connection, worker, [f"few-{n}"])
        many = [f"many-{n}" for n in range(MANY)]
        await connection.execute(
            """insert into instances (id, deployment_uid, revision, phase, epoch)
               select id, $1, 1, 'pending', 0 from unnest($2::text[]) id""",
            uid,
            many,
        )
        before = await _rows_read_whole(connection)
        await _command(connection, worker, many)
        assert await _rows_read_whole(connection) - before < MANY
