"""The gateways that report or did so; an operator's word that one is gone."""

from typing import Any, Final

from controller.domain.events import NewEvent
from controller.store.core.database import Database, Reader, view_of
from controller.store.core.events import write_events
from controller.store.core.refusals import InUseError, NotFoundError
from schemas.api.usage import GatewayView

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
    """Every process of a gateway, by name, also those that no longer report."""
    rows = await connection.fetch(_LIST, SILENT_S)
    return [view_of(GatewayView, row) for row in rows]


async def forget_gateway(database: Database, name: str) -> None:
    """A gateway is gone for good: nothing waits for its reports any more. One that comes back is a member again.

    Args:
        database: to write to.
        name: of a process, or of a gateway with all its processes that are silent.

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
