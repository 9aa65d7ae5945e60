"""Requests that were in flight when engines ended: written by gateways, judged by agents' reports of those ends."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from controller.domain.crashed_requests import KEPT_S, UNDECIDED_S, RequestAtEnd
from controller.store.core.events import ENDS, notify

MOST_READ: Final = 10_000
_NEAR_S: Final = 60.0  # at most between the end of a process's connections and its own end
_JUDGED_S: Final = 2 * _NEAR_S  # after which no report can be near any more
# Exits requested by hand or by an init system. Not SIGKILL: engines of several processes kill themselves after a crash.
_REQUESTED_CODES: Final = (0, -1, -2, -15, 129, 130, 143)
_WRITE: Final = """
    insert into requests_at_ends (instance_id, epoch, request, at)
    select *, clock_timestamp() from unnest($1::text[], $2::integer[], $3::bytea[]) on conflict do nothing"""
# A crash is an end that nothing requested. Of several ranks the first end is the cause. Where a rank's end was not
# reported, as on a lost host, nothing is known.
_JUDGE: Final = """
    with ended as (
        select p.instance_id, p.epoch, bool_and(p.state = 'exited') as complete,
               bool_or(coalesce(p.reason, 'exit') in ('gone', 'agent_stopped', 'disconnected')) as blameless,
               (array_agg(coalesce(p.reason, 'exit') = 'exit' and coalesce(p.exit_code, 1) <> all ($1::integer[])
                          order by p.state <> 'exited', p.reported_at, p.rank))[1] as crashed,
               max(p.reported_at) as at
          from processes p
         where (p.instance_id, p.epoch) in (
                   select instance_id, epoch from requests_at_ends
                    where crashed is null and at > clock_timestamp() - make_interval(secs => $3))
         group by 1, 2)
    update requests_at_ends r set crashed = e.crashed and not e.blameless
      from ended e
     where (r.instance_id, r.epoch) = (e.instance_id, e.epoch) and r.crashed is null and e.complete
       and e.at between r.at - make_interval(secs => $2) and r.at + make_interval(secs => $2)"""
# The first of its ranks to end by itself. `_JUDGE` decides later whether that was a crash.
_ENDED: Final = """
    select instance_id, epoch, extract(epoch from clock_timestamp() - min(reported_at))::float8 as age_s
      from processes
     where (instance_id, epoch) in (select * from unnest($2::text[], $3::integer[])) and state = 'exited'
       and coalesce(reason, 'exit') = 'exit' and coalesce(exit_code, 1) <> all ($1::integer[])
     group by 1, 2"""
_READ: Final = """
    select instance_id, epoch, request, crashed,
           greatest(extract(epoch from clock_timestamp() - at), 0)::float8 as age_s
      from requests_at_ends
     where (crashed and at > clock_timestamp() - make_interval(secs => $2))
        or (crashed is null and at > clock_timestamp() - make_interval(secs => $3))
     order by at desc limit $1"""
_SOME_UNKNOWN: Final = """
    select exists (select 1 from requests_at_ends
                    where crashed is null and at > clock_timestamp() - make_interval(secs => $1))"""
_PRUNE: Final = "delete from requests_at_ends where at < clock_timestamp() - make_interval(secs => $1)"


async def write_requests_at_ends(connection: Any, ends: Sequence[tuple[str, int, bytes]]) -> None:
    """Adds requests (instance, epoch, digest), and wakes the other gateways. Run it in a transaction."""
    instances, epochs, requests = zip(*sorted(ends), strict=True)  # sorted: gateways may write the same rows
    await connection.execute(_WRITE, instances, epochs, requests)
    await connection.execute(_PRUNE, KEPT_S)
    await notify(connection, ENDS, ("requests",))


async def read_ends(connection: Any, epochs: Collection[tuple[str, int]]) -> dict[tuple[str, int], float]:
    """Seconds since the end of each (instance, epoch) that ended although nothing requested it."""
    instances, numbers = zip(*epochs, strict=True)
    rows = await connection.fetch(_ENDED, _REQUESTED_CODES, instances, numbers)
    return {(row["instance_id"], row["epoch"]): row["age_s"] for row in rows}


async def read_requests_at_ends(connection: Any) -> list[RequestAtEnd]:
    """All that may matter, newest first, after judging those whose end is known by now."""
    if await connection.fetchval(_SOME_UNKNOWN, _JUDGED_S):
        await connection.execute(_JUDGE, _REQUESTED_CODES, _NEAR_S, _JUDGED_S)
    rows = await connection.fetch(_READ, MOST_READ, KEPT_S, UNDECIDED_S)
    return [
        RequestAtEnd(row["instance_id"], row["epoch"], row["request"], row["age_s"], row["crashed"]) for row in rows
    ]
