"""Gateways: the presence, demand and wakes that they write, and an operator's declaration that a gateway is gone."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.domain.scaling import GatewayLoad
from controller.store.core.database import Database, Reader, view_of
from controller.store.core.events import CHANNEL, write_events
from controller.store.core.refusals import InUseError, NotFoundError
from controller.store.scaling.queue_places import return_queue_places
from schemas.api.usage import GatewayView

WAKE_S: Final = 60.0  # a wake lasts this long after the last request, unless it is withdrawn

_REPLACED_S: Final = 5.0  # a process of the same name that has not reported for that long is gone
_REPORT: Final = """
    with gone as (
        delete from gateways where name = $2 and id <> $1 and seen_at < now() - make_interval(secs => $9)),
    here as (
        insert into gateways as g (id, name, beat) values ($1, $2, $3)
        on conflict (id) do update set beat = excluded.beat, seen_at = now() returning xmax = 0 as is_new),
    demand as (
    insert into gateway_demand as d (gateway_id, deployment_uid, mean, in_flight, waiting, arrived, replicas)
    select $1, x.uid, x.mean, x.in_flight, x.waiting, x.arrived, x.replicas
      from unnest($4::uuid[], $5::real[], $6::int[], $7::int[], $8::bigint[], $10::jsonb[])
           as x (uid, mean, in_flight, waiting, arrived, replicas)
     where exists (select 1 from here)
     order by x.uid
    on conflict (gateway_id, deployment_uid) do update
       set mean = excluded.mean, in_flight = excluded.in_flight, waiting = excluded.waiting,
           arrived = excluded.arrived, replicas = excluded.replicas)
    select is_new from here"""
_RANK: Final = """
    select count(*) filter (where id < $1)::int as rank, count(*)::int as gateways
      from gateways where seen_at > now() - interval '10 s' or id = $1"""
# Only the first request of a wake counts: the leader is notified once.
_WAKE: Final = """
    with wake as (
        insert into wakes as w (deployment_uid, source, request_id, expires_at)
        select d.uid, 'gateway:' || $2::text, $3, now() + make_interval(secs => $4)
          from deployments d where d.uid = $1 and d.deleted_at is null
        on conflict (deployment_uid, source) do update
           set expires_at = excluded.expires_at,
               request_id = case when w.expires_at < now() then excluded.request_id else w.request_id end,
               created_at = case when w.expires_at < now() then now() else w.created_at end
        returning created_at = now() as is_new)
    select pg_notify($5, 'wake ' || $1::text) from wake where is_new"""
_WITHDRAW: Final = """
    with gone as (delete from wakes where deployment_uid = $1 and source = 'gateway:' || $2::text returning 1)
    select pg_notify($3, 'wake ' || $1::text) from gone"""


async def report_demand(
    connection: Any, gateway: uuid.UUID, name: str, beat: int, loads: Mapping[uuid.UUID, GatewayLoad]
) -> bool:
    """Writes a gateway's presence, and its demand where that has changed; returns whether its presence is new.

    It replaces an earlier process of this `name` once that is silent. `beat` rises with each report. `loads`: those
    that changed, by deployment. The connection is in no transaction, or in one of its own.
    """
    order = sorted(loads, key=str)
    is_new = await connection.fetchval(
        _REPORT,
        gateway,
        name,
        beat,
        order,
        [loads[uid].mean for uid in order],
        [loads[uid].in_flight for uid in order],
        [loads[uid].waiting for uid in order],
        [loads[uid].arrived for uid in order],
        _REPLACED_S,
        [dict(loads[uid].replicas) for uid in order],
    )
    return bool(is_new)


async def rank_of(connection: Any, gateway: uuid.UUID) -> tuple[int, int]:
    """Returns a gateway's rank among all that report, from 0, and their number."""
    row = await connection.fetchrow(_RANK, gateway)
    return row["rank"], max(row["gateways"], 1)


async def leave(connection: Any, gateway: uuid.UUID) -> None:
    """Removes the rows of a gateway that ends in order."""
    await connection.execute("delete from wakes where source = 'gateway:' || $1::text", str(gateway))
    await return_queue_places(connection, gateway)
    await connection.execute("delete from gateways where id = $1", gateway)


async def ask_wake(connection: Any, gateway: uuid.UUID, deployment: uuid.UUID, request_id: str) -> None:
    """Requests or prolongs the wake of a sleeping deployment. It expires `WAKE_S` after the last call."""
    await connection.execute(_WAKE, deployment, str(gateway), request_id, WAKE_S, CHANNEL)


async def withdraw_wake(connection: Any, gateway: uuid.UUID, deployment: uuid.UUID) -> None:
    await connection.execute(_WITHDRAW, deployment, str(gateway), CHANNEL)


SILENT_S: Final = 10.0  # a gateway that has not reported for that long is silent
_LIST: Final = """
    select g.name, g.seen_at,
           case when g.seen_at < clock_timestamp() - make_interval(secs => $1)
                then 'silent' else 'reporting' end as state,
           coalesce(sum(d.in_flight), 0)::int as in_flight, coalesce(sum(d.waiting), 0)::int as waiting
      from gateways g left join gateway_demand d on d.gateway_id = g.id
     group by g.id order by g.name, g.seen_at"""
_FIND: Final = """
    select id, name, extract(epoch from clock_timestamp() - seen_at)::float8 as silent_s
      from gateways where name = $1 or left(name, length($1) + 1) = $1 || '/' order by name for update"""
_FORGET: Final = (
    "delete from wakes where source in (select 'gateway:' || id from unnest($1::uuid[]) id)",
    "delete from queue_places where gateway_id = any($1::uuid[])",
    "delete from gateways where id = any($1::uuid[])",
)


async def list_gateways(connection: Reader) -> list[GatewayView]:
    """Lists every process of a gateway, by name, also those that no longer report."""
    rows = await connection.fetch(_LIST, SILENT_S)
    return [view_of(GatewayView, row) for row in rows]


async def forget_gateway(database: Database, name: str) -> None:
    """Removes a gateway that is gone for good, so that its reports are no longer missing. It may return later.

    `name`: a process's name, or a gateway's: then all its silent processes are removed.

    Raises:
        NotFoundError: no gateway has this name.
        InUseError: it reports.
    """
    async with database.transaction() as connection:
        rows = await connection.fetch(_FIND, name)
        if not rows:
            raise NotFoundError(f"no gateway is named {name!r}; `gpuward gateway list` shows the names")
        silent = [row for row in rows if row["silent_s"] > SILENT_S]
        if not silent:
            raise InUseError(f"gateway {name} reports; stop it, and it signs off by itself")
        await _forget(connection, silent)


async def _forget(connection: Any, rows: Any) -> None:
    for statement in _FORGET:
        await connection.execute(statement, [row["id"] for row in rows])
    events = [
        NewEvent(
            "gateway_forgotten",
            f"gateway {row['name']} was forgotten; it had been silent for {row['silent_s']:.0f} s",
            (f"gateway:{row['name']}",),
            {"gateway": row["name"], "silent_s": round(row["silent_s"], 1)},
        )
        for row in rows
    ]
    await write_events(connection, events)
