"""Workers as the API shows them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.views.gpus import FREE_MIB
from controller.store.views.paging import in_batches, open_cursor, page_of
from schemas.api.envelopes import Condition, Page
from schemas.api.view import from_plain
from schemas.api.workers import EngineView, WorkerSpecView, WorkerStatus, WorkerView
from schemas.engine_builds import versions_of
from schemas.worker_conditions import DRAINED

# A deleted worker is shown while claims on its devices are left.
_SHOWN: Final = """(w.deleted_at is null
    or exists (select 1 from devices v where v.worker_id = w.id and v.claims > 0))"""
# Of a worker `w` and its liveness `l`: the columns of its state and its conditions.
STATE_COLUMNS: Final = """
    w.*, w.quarantined_until > clock_timestamp() as quarantined,
    coalesce(w.samples_dropped_at > now() - interval '10 min', false) as dropping,
    l.connected and l.session = w.session as connected, l.last_seen,
    case when w.draining and w.drain_until is not null then (
         select jsonb_agg(jsonb_build_array(x.id, x.task) order by x.id)
           from (select distinct i.id, r.spec ->> 'restart' = 'never' as task
                   from devices v
                   join claims c on c.device = v.uuid
                   join instances i on i.id = c.instance_id
                   join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
                  where v.worker_id = w.id and i.phase not in ('stopping', 'replaced')
                  order by 1 limit 1000) x) end as drain_awaits,
    clock_timestamp() >= w.drain_until as drain_due"""
_MOST_NAMED: Final = 10
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
    """One page by name. Raises BadCursorError if the cursor was not issued for this list."""
    after = open_cursor(cursor, (str, str)) or ["", "00000000-0000-0000-0000-000000000000"]
    query = f"""{_WORKERS} where (w.name, w.id) > ($1::text, ($2::text)::uuid) and {_SHOWN}
                order by w.name, w.id limit $3"""
    rows = await connection.fetch(query, *after, limit + 1)
    return page_of([_view(row) for row in rows], limit, lambda view: (view.name, view.uid))


async def workers_by_id(connection: Reader, ids: Iterable[str] | None = None) -> list[WorkerView]:
    """`ids` None: all."""
    if ids is None:
        rows = await connection.fetch(f"{_WORKERS} where {_SHOWN} order by w.name, w.id")
    else:
        rows = await connection.fetch(f"{_WORKERS} where w.id = any($1::uuid[]) and {_SHOWN}", list(ids))
    return await in_batches(rows, _views)


async def worker_by_name(connection: Reader, name: str) -> WorkerView:
    """The live worker of this name, else the last deleted one with claims. Raises NotFoundError without either."""
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
    """The stored conditions, those of a drain, and that of recently dropped sampling periods."""
    conditions = [*(from_plain(Condition, one) for one in row["conditions"]), *_drain_conditions(row)]
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


def _drain_conditions(row: Any) -> list[Condition]:
    """The instances for which a drained worker waits. Those that stop at once are shown by their phase."""
    awaited = row["drain_awaits"] or []
    tasks, others = [id_ for id_, task in awaited if task], [id_ for id_, task in awaited if not task]
    due, parts = row["drain_due"], []
    if others and not due:
        parts.append(f"waits until replacements of {_names(others)} run elsewhere, and stops them then")
    if tasks and due and not row["drain_restarts_tasks"]:
        parts.append(
            f"{_names(tasks)} (restart: never) may run until the end; to start them again elsewhere: "
            f"gpuward drain {row['name']} --restart-tasks"
        )
    elif tasks and not due:
        parts.append(f"waits for the end of {_names(tasks)} (restart: never)")
    if not parts:
        return []
    reason = "tasks_run_on" if due else "drain_waits"
    since = row["drain_until"] if due else None
    return [Condition(type=DRAINED, status="false", reason=reason, message="; ".join(parts), since=since)]


def _names(ids: Sequence[str]) -> str:
    more = len(ids) - _MOST_NAMED
    return ", ".join(ids[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _engines(reported: Sequence[str] | None) -> list[EngineView] | None:
    if reported is None:
        return None
    return [EngineView(name=name, version=version or None) for name, version in versions_of(reported).items()]


async def _views(rows: Sequence[Any]) -> list[WorkerView]:
    return [_view(row) for row in rows]


def _view(row: Any) -> WorkerView:
    return view_of(
        WorkerView,
        row,
        uid=row["id"],
        spec=view_of(WorkerSpecView, row, restart_tasks=row["drain_restarts_tasks"]),
        status=view_of(
            WorkerStatus,
            row,
            state=worker_state(row),
            engines=_engines(row["engines"]),
            connected=bool(row["connected"]),
            conditions=worker_conditions(row),
        ),
    )
