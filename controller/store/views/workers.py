"""Workers as the API shows them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from controller.store.core.database import Reader
from controller.store.core.refusals import NotFoundError
from controller.store.core.rows import columns_of
from controller.store.views.gpus import FREE_MIB
from controller.store.views.paging import open_cursor, page_of
from controller.store.views.pieces import in_pieces
from schemas.api.envelopes import Condition, Page
from schemas.api.workers import WorkerSpecView, WorkerStatus, WorkerView

# A deleted worker is shown while claims on its devices are left.
_SHOWN: Final = """(w.deleted_at is null
    or exists (select 1 from devices v where v.worker_id = w.id and v.claims > 0))"""
# Of a worker `w` and its liveness `l`: what its state and its conditions follow from.
STATE_COLUMNS: Final = """
    w.*, w.quarantined_until > clock_timestamp() as quarantined,
    coalesce(w.samples_dropped_at > now() - interval '10 min', false) as dropping,
    l.connected and l.session = w.session as connected, l.last_seen"""
_WORKERS: Final = f"""
    select {STATE_COLUMNS},
           t.gpus, t.memory_mib, t.claimed_mib, t.free_mib, t.host_memory_mib, t.free_host_memory_mib, t.cpu_milli,
           t.free_cpu_milli, t.instances
      from workers w
      left join worker_liveness l on l.worker_id = w.id
      left join lateral (
          select count(*) filter (where d.kind = 'gpu' and d.present) as gpus,
                 coalesce(sum(d.memory_mib) filter (where d.kind = 'gpu' and d.present), 0)::bigint as memory_mib,
                 coalesce(sum(d.claimed_mib) filter (where d.kind = 'gpu' and d.present), 0)::bigint as claimed_mib,
                 coalesce(sum({FREE_MIB}) filter (where d.kind = 'gpu' and d.present), 0)::bigint as free_mib,
                 coalesce(sum(d.memory_mib) filter (where d.kind = 'host'), 0)::bigint as host_memory_mib,
                 coalesce(sum({FREE_MIB}) filter (where d.kind = 'host'), 0)::bigint as free_host_memory_mib,
                 coalesce(sum(d.cpu_milli), 0)::bigint as cpu_milli,
                 coalesce(sum(d.cpu_milli - d.claimed_cpu_milli), 0)::bigint as free_cpu_milli,
                 (select count(distinct c.instance_id) from claims c join devices x on x.uuid = c.device
                   where x.worker_id = w.id) as instances
            from devices d where d.worker_id = w.id) t on true"""  # noqa: S608 - a constant, no input


async def list_workers(connection: Reader, *, limit: int, cursor: str | None = None) -> Page[WorkerView]:
    """One page by name.

    Raises:
        BadCursorError: the cursor was not issued for this list.
    """
    after = open_cursor(cursor, (str, str)) or ["", "00000000-0000-0000-0000-000000000000"]
    query = f"""{_WORKERS} where (w.name, w.id) > ($1::text, ($2::text)::uuid) and {_SHOWN}
                order by w.name, w.id limit $3"""
    rows = await connection.fetch(query, *after, limit + 1)
    return page_of([_view(row) for row in rows], limit, lambda view: (view.name, view.uid))


async def workers_by_id(connection: Reader, ids: Iterable[str] | None = None) -> list[WorkerView]:
    """These workers, or all."""
    if ids is None:
        rows = await connection.fetch(f"{_WORKERS} where {_SHOWN} order by w.name, w.id")
    else:
        rows = await connection.fetch(f"{_WORKERS} where w.id = any($1::uuid[]) and {_SHOWN}", list(ids))
    return await in_pieces(rows, _views)


async def worker_by_name(connection: Reader, name: str) -> WorkerView:
    """The live worker of this name; without one, the last deleted one with claims left.

    Raises:
        NotFoundError: there is neither.
    """
    query = f"""{_WORKERS} where w.name = $1 and {_SHOWN}
                order by w.deleted_at is null desc, w.deleted_at desc limit 1"""
    rows = await connection.fetch(query, name)
    if not rows:
        raise NotFoundError(f"no worker is named {name!r}; `gpuward get workers` lists them")
    return _view(rows[0])


def worker_state(row: Any) -> str:
    """The state for operators: their own flags take precedence over the observed phase."""
    if row["deleted_at"] is not None:
        return "deleted"
    if row["draining"]:
        return "draining" if row["instances"] else "drained"
    if row["cordoned"]:
        return "cordoned"
    if row["quarantined"] and row["phase"] == "unreachable" and row["connected"]:
        return "quarantined"
    phase: str = row["phase"]
    return phase


def worker_conditions(row: Any) -> list[Condition]:
    """Those that are stored, and whether sampling periods could not be taken of late."""
    conditions = [Condition.model_validate(one) for one in row["conditions"]]
    if not row["dropping"]:
        return conditions
    message = (
        f"some sampling periods cannot be taken and are lost, so verdicts may be unknown; {row['samples_dropped']}"
    )
    return [
        *conditions,
        Condition(
            type="TelemetryComplete",
            status="false",
            reason="samples_dropped",
            message=message,
            since=row["samples_dropped_at"],
        ),
    ]


async def _views(rows: Sequence[Any]) -> list[WorkerView]:
    return [_view(row) for row in rows]


def _view(row: Any) -> WorkerView:
    return WorkerView(
        name=row["name"],
        uid=str(row["id"]),
        created_at=row["created_at"],
        deleted_at=row["deleted_at"],
        spec=WorkerSpecView(cordoned=row["cordoned"], draining=row["draining"]),
        status=WorkerStatus(
            **(
                columns_of(WorkerStatus, row)
                | {
                    "state": worker_state(row),
                    "connected": bool(row["connected"]),
                    "conditions": worker_conditions(row),
                }
            ),
        ),
    )
