"""What agents say of processes that a ledger which lost commits does not know, until the leader has decided."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import to_builtins

from controller.store.core.database import Connection
from schemas.wire import ProcessReport

_ProcessKey = tuple[str, int, int]

# Of what the ledger knows nothing is found: its claims speak for it.
_KEEP: Final = """
    insert into found_processes (instance_id, epoch, rank, worker_id, session, receipt, report)
    select x.* from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::bigint[], $6::jsonb[], $7::jsonb[])
                    as x(instance_id, epoch, rank, worker_id, session, receipt, report)
     where not exists (select 1 from claims c where (c.instance_id, c.epoch, c.rank) = (x.instance_id, x.epoch, x.rank))
     order by 1, 2, 3
        on conflict (instance_id, epoch, rank) do update
       set session = excluded.session, receipt = excluded.receipt, report = excluded.report
     where found_processes.worker_id = excluded.worker_id
    returning instance_id, epoch, rank"""
_FOUND: Final = "select instance_id, epoch, rank from found_processes where worker_id = $1"
_FORGET_OTHERS: Final = """
    delete from found_processes f
     where f.worker_id = $1 and (f.instance_id, f.epoch, f.rank) not in (
           select * from unnest($2::text[], $3::integer[], $4::integer[]))"""
_UPDATE: Final = """
    update found_processes f set report = r.report
      from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::jsonb[])
           as r(instance_id, epoch, rank, worker_id, report)
     where (f.instance_id, f.epoch, f.rank, f.worker_id) = (r.instance_id, r.epoch, r.rank, r.worker_id)
       and (f.report ->> 'seq')::bigint < (r.report ->> 'seq')::bigint"""
_END: Final = """
    delete from found_processes f
     using unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[]) as r(instance_id, epoch, rank, worker_id)
     where (f.instance_id, f.epoch, f.rank, f.worker_id) = (r.instance_id, r.epoch, r.rank, r.worker_id)"""


async def keep_found(
    connection: Connection,
    worker_id: str,
    session: int,
    reports: Iterable[ProcessReport],
    receipts: Mapping[_ProcessKey, Mapping[str, Any]],
) -> None:
    """Keeps those live processes of a hello that have a receipt and are not in the ledger; forgets all others of it.

    Args:
        connection: in the transaction of the hello.
        worker_id: the sender.
        session: of the hello.
        reports: all processes that it names.
        receipts: what the ledger said of them, by process.
    """
    found = [r for r in reports if r.state != "exited" and (r.instance, r.epoch, r.rank) in receipts]
    keys = [(r.instance, r.epoch, r.rank) for r in found]
    columns = [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]
    await connection.execute(_FORGET_OTHERS, worker_id, *columns)
    if found:
        await connection.fetch(
            _KEEP,
            *columns,
            [worker_id] * len(keys),
            [session] * len(keys),
            [dict(receipts[key]) for key in keys],
            [to_builtins(r) for r in found],
        )


async def of_those_found(
    connection: Connection, worker_id: str, receipts: Mapping[_ProcessKey, dict[str, Any]]
) -> dict[_ProcessKey, dict[str, Any]]:
    """The receipts of processes that an earlier hello of this worker told, and that are to be decided yet."""
    rows = await connection.fetch(_FOUND, worker_id)
    return {key: receipts[key] for row in rows if (key := tuple(row)) in receipts}


async def follow_found(connection: Connection, reports: Sequence[tuple[str, ProcessReport]]) -> None:
    """Takes over newer reports of processes that are found, each with its worker; ended ones are forgotten."""
    alive = [(worker, r) for worker, r in reports if r.state != "exited"]
    ended = [(worker, r) for worker, r in reports if r.state == "exited"]
    if alive:
        await connection.execute(_UPDATE, *_columns(alive), [to_builtins(r) for _, r in alive])
    if ended:
        await connection.execute(_END, *_columns(ended))


def _columns(reports: Collection[tuple[str, ProcessReport]]) -> tuple[list[Any], ...]:
    return (
        [r.instance for _, r in reports],
        [r.epoch for _, r in reports],
        [r.rank for _, r in reports],
        [worker for worker, _ in reports],
    )
