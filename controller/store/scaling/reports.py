"""What gateways write: their presence and demand once a second, and wakes."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from controller.domain.scaling import GatewayLoad
from controller.store.core.events import CHANNEL
from controller.store.scaling.queue_places import return_queue_places

WAKE_S: Final = 60.0  # a wake lasts so long after the last request, unless it is withdrawn

_REPLACED_S: Final = 5.0  # a process of the same name that has not reported for that long is gone
_REPORT: Final = """
    with gone as (
        delete from gateways where name = $2 and id <> $1 and seen_at < now() - make_interval(secs => $9)),
    here as (
        insert into gateways as g (id, name, beat) values ($1, $2, $3)
        on conflict (id) do update set beat = excluded.beat, seen_at = now() returning xmax = 0 as is_new),
    told as (
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
    with asked as (
        insert into wakes as w (deployment_uid, source, request_id, expires_at)
        select d.uid, 'gateway:' || $2::text, $3, now() + make_interval(secs => $4)
          from deployments d where d.uid = $1 and d.deleted_at is null
        on conflict (deployment_uid, source) do update
           set expires_at = excluded.expires_at,
               request_id = case when w.expires_at < now() then excluded.request_id else w.request_id end,
               created_at = case when w.expires_at < now() then now() else w.created_at end
        returning created_at = now() as is_new)
    select pg_notify($5, 'wake ' || $1::text) from asked where is_new"""
_WITHDRAW: Final = """
    with gone as (delete from wakes where deployment_uid = $1 and source = 'gateway:' || $2::text returning 1)
    select pg_notify($3, 'wake ' || $1::text) from gone"""


async def report_demand(
    connection: Any, gateway: uuid.UUID, name: str, beat: int, loads: Mapping[uuid.UUID, GatewayLoad]
) -> bool:
    """Writes a gateway's presence, and its demand where that has changed; returns whether its presence is new.

    Args:
        connection: in no transaction, or in one of its own.
        gateway: the process.
        name: it takes the place of an earlier process of this name once that is silent.
        beat: rises with each report.
        loads: by deployment; those that did not change may be left out.
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
    """A gateway's rank among all that report, from 0, and how many these are."""
    row = await connection.fetchrow(_RANK, gateway)
    return row["rank"], max(row["gateways"], 1)


async def leave(connection: Any, gateway: uuid.UUID) -> None:
    """A gateway ends in an orderly way: it is no longer missed, and its wakes end."""
    await connection.execute("delete from wakes where source = 'gateway:' || $1::text", str(gateway))
    await return_queue_places(connection, gateway)
    await connection.execute("delete from gateways where id = $1", gateway)


async def ask_wake(connection: Any, gateway: uuid.UUID, deployment: uuid.UUID, request_id: str) -> None:
    """Asks for a sleeping deployment to wake, or prolongs that. It ends by itself `WAKE_S` after the last call."""
    await connection.execute(_WAKE, deployment, str(gateway), request_id, WAKE_S, CHANNEL)


async def withdraw_wake(connection: Any, gateway: uuid.UUID, deployment: uuid.UUID) -> None:
    """No request waits at this gateway any more."""
    await connection.execute(_WITHDRAW, deployment, str(gateway), CHANNEL)
