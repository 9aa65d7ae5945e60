"""Events: append-only facts, written in the transaction of what they record."""

from collections.abc import Iterable
from typing import Any, Protocol

from controller.domain.events import NewEvent


class _Connection(Protocol):
    async def execute(self, query: str, *args: Any) -> Any:
        """Runs one statement."""


async def write_events(connection: _Connection, events: Iterable[NewEvent]) -> None:
    """Appends events in order, in one statement."""
    rows = list(events)
    if rows:
        await connection.execute(
            """insert into events (reason, message, evidence, objects)
               select reason, message, evidence, string_to_array(objects, E'\n')
                 from unnest($1::text[], $2::text[], $3::jsonb[], $4::text[]) with ordinality
                      as x (reason, message, evidence, objects, n)
                order by n""",
            [e.reason for e in rows],
            [e.message for e in rows],
            [dict(e.evidence) for e in rows],
            ["\n".join(e.objects) for e in rows],
        )
