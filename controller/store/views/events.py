"""Events as the API shows them: newest first, optionally of some objects or reasons."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from controller.store.core.database import Reader, view_of
from controller.store.views.paging import open_cursor, page_of
from schemas.api.envelopes import Page
from schemas.api.events import EventView


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events."""

    about: Sequence[Sequence[str]] = ()  # for each object its names in events; an event must have one name of each
    reasons: Sequence[str] = ()  # any of these; empty: all
    since_id: int | None = None  # only later events
    after: datetime | timedelta | None = None  # only events after this time, or after this long before now


_COLUMNS: Final = "id, at, reason, message, evidence, objects, subjects, actor, request_id"
# Not `id <> all ($2)`, because a kept plan would search all of `$2` for each event.
_ABOVE: Final = f"""
    select {_COLUMNS} from events e
     where id > $1 and not exists (select 1 from unnest($2::bigint[]) known where known = e.id)
     order by id limit $3"""  # noqa: S608 - constants, no input
EVERY_EVENT: Final = EventFilter()
_LIVE: Final = {
    "deployment": "select uid from deployments where name = $1",
    "worker": "select id as uid from workers where name = $1",
    "policy": "select uid from policies where name = $1",
    "key": "select id as uid from api_keys where name = $1",
}
# The last event of an object that is gone has its uid and name. There is an index of these alone.
_GONE: Final = """
    select distinct subjects -> 0 ->> 'uid' as uid from events
     where reason in ('finished', 'policy_deleted')
       and subjects -> 0 ->> 'name' = $2 and subjects -> 0 ->> 'kind' = $1"""


async def newest_events(connection: Reader, limit: int) -> list[int]:
    """The ids of the newest events, the highest first."""
    return [row["id"] for row in await connection.fetch("select id from events order by id desc limit $1", limit)]


async def events_above(connection: Reader, floor: int, known: Collection[int], limit: int) -> list[EventView]:
    """The oldest events with an id above the floor, without the known ids, in order."""
    rows = await connection.fetch(_ABOVE, floor, list(known), limit)
    return [event_view(row) for row in rows]


async def list_events(
    connection: Reader,
    *,
    limit: int,
    cursor: str | None = None,
    wanted: EventFilter = EVERY_EVENT,
) -> Page[EventView]:
    """One page, newest first. Raises BadCursorError if the cursor was not issued for this list."""
    before = open_cursor(cursor, (int,)) or [None]
    after, age = (None, wanted.after) if isinstance(wanted.after, timedelta) else (wanted.after, None)
    # Unused filters are left out of the query, so that the plan suits the used ones.
    narrowed = "".join(f" and objects && ${number}::text[]" for number, _ in enumerate(wanted.about, 6))
    narrowed += f" and reason = any(${6 + len(wanted.about)})" if wanted.reasons else ""
    rows = await connection.fetch(
        f"""select {_COLUMNS} from events
            where ($1::bigint is null or id < $1) and ($2::bigint is null or id > $2)
              and ($3::timestamptz is null or at > $3) and ($4::interval is null or at > now() - $4) {narrowed}
            order by id desc limit $5""",  # noqa: S608 - numbers of parameters alone
        *before,
        wanted.since_id,
        after,
        age,
        limit + 1,
        *map(list, wanted.about),
        *([list(wanted.reasons)] if wanted.reasons else ()),
    )
    return page_of([event_view(row) for row in rows], limit, lambda view: (view.id,))


def event_view(row: Any) -> EventView:
    return view_of(EventView, row, durations=row["evidence"].get("durations") or {})


async def objects_named(connection: Reader, kind: str, name: str) -> list[str]:
    """How events name the objects of this kind and name: the existing objects, else those that are gone."""
    live = _LIVE.get(kind)
    if live is None:
        return [f"{kind}:{name}"]
    uids = {str(row["uid"]) for row in await connection.fetch(live, name)}
    uids = uids or {row["uid"] for row in await connection.fetch(_GONE, kind, name)}
    return [f"{kind}:{uid}" for uid in sorted(uids)] or [f"{kind}:{name}"]
