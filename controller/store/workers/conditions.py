"""Workers' conditions: states that the phase does not express, each with a reason."""

from collections.abc import Iterable
from typing import Any, Final

from controller.store.core.database import Connection

# An unchanged condition is not written, so that repeated refusals cost no row versions and make no events.
_SET: Final = """
    update workers w
       set conditions = (select coalesce(jsonb_agg(c), '[]') from jsonb_array_elements(w.conditions) c
                          where c ->> 'type' <> $2)
                        || jsonb_build_object('type', $2, 'status', $5::text, 'reason', $3, 'message', $4,
                                              'since', clock_timestamp())
     where w.id = $1 and w.deleted_at is null
       and not exists (select 1 from jsonb_array_elements(w.conditions) c
                        where (c ->> 'type', c ->> 'reason', c ->> 'message') = ($2, $3, $4))
    returning 1"""
_CLEAR: Final = """
    with had as (
        select distinct c ->> 'type' as type from workers w, jsonb_array_elements(w.conditions) c
         where w.id = $1 and c ->> 'type' = any($2)
    ), cleared as (
        update workers w
           set conditions = (select coalesce(jsonb_agg(c), '[]') from jsonb_array_elements(w.conditions) c
                              where c ->> 'type' <> all($2))
         where w.id = $1 and exists (select 1 from had)
    )
    select type from had"""


async def set_condition(
    connection: Connection, worker_id: str, type_: str, reason: str, message: str, *, status: str = "false"
) -> bool:
    """Returns whether the condition is new."""
    row: Any = await connection.fetchrow(_SET, worker_id, type_, reason, message, status)
    return row is not None


async def clear_condition(connection: Connection, worker_id: str, type_: str) -> bool:
    """Returns whether there was such a condition."""
    return type_ in await clear_conditions(connection, worker_id, [type_])


async def clear_conditions(connection: Connection, worker_id: str, types: Iterable[str]) -> set[str]:
    """Returns the types of the conditions that were removed."""
    return {row["type"] for row in await connection.fetch(_CLEAR, worker_id, list(types))}
