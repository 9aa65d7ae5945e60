"""Events: append-only facts, written in the transaction of what they record.

Those that an agent alone can cause have budgets (`event_budgets.py`).
"""

from collections.abc import Iterable, Sequence

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from controller.domain.events import NewEvent
from controller.store.core.acting import current_actor
from controller.store.core.event_budgets import BudgetConnection, admit, with_actor, write_late


async def write_events(connection: BudgetConnection, events: Iterable[NewEvent]) -> None:
    """Appends events in order, in one statement. Those without an actor get the present one.

    Raises:
        ValueError: an event names no object, so it would show in no story.
    """
    rows = list(events)
    if unnamed := next((event for event in rows if not event.objects), None):
        raise ValueError(f"the event {unnamed.reason!r} names no object")
    admitted = await admit(connection, with_actor(rows, current_actor().name))
    await _append(connection, admitted)


async def write_late_events(connection: BudgetConnection) -> None:
    """Appends the events that stand for those beyond their budgets, once it is time for them."""
    late = await write_late(connection)
    await _append(connection, late)


async def _append(connection: BudgetConnection, rows: Sequence[NewEvent]) -> None:
    if rows:
        await connection.execute(
            """insert into events (reason, message, evidence, objects, actor, request_id, subjects)
               select reason, message, evidence, string_to_array(objects, E'\n'), actor, $6,
                      event_subjects(string_to_array(objects, E'\n'), evidence)
                 from unnest($1::text[], $2::text[], $3::jsonb[], $4::text[], $5::text[]) with ordinality
                      as x (reason, message, evidence, objects, actor, n)
                order by n""",
            [e.reason for e in rows],
            [e.message for e in rows],
            [dict(e.evidence) for e in rows],
            ["\n".join(e.objects) for e in rows],
            [e.actor for e in rows],
            current_actor().request_id,
        )


async def write_event_in_session(session: AsyncSession, event: NewEvent) -> None:
    """Appends one event in the transaction of an ORM session."""
    await session.flush()  # rows that the event names must be there
    actor = current_actor()
    await session.execute(
        text(
            """insert into events (reason, message, evidence, objects, actor, request_id, subjects)
               select x.*, event_subjects(x.objects, x.evidence)
                 from (select cast(:reason as text), cast(:message as text), cast(:evidence as jsonb) as evidence,
                              string_to_array(:objects, E'\n') as objects, cast(:actor as text),
                              cast(:request_id as text)) x"""
        ),
        {
            "reason": event.reason,
            "message": event.message,
            "evidence": orjson.dumps(dict(event.evidence)).decode(),
            "objects": "\n".join(event.objects),
            "actor": event.actor or actor.name,
            "request_id": actor.request_id,
        },
    )
