"""Events as the API shows them: newest first, optionally of some objects or reasons."""

from controller.store.core.database import Reader
from controller.store.views.paging import open_cursor, page_of
from schemas.api.envelopes import Page
from schemas.api.events import EventView


async def list_events(
    connection: Reader,
    *,
    limit: int,
    cursor: str | None = None,
    objects: list[str] | None = None,
    reason: str | None = None,
    since_id: int | None = None,
) -> Page[EventView]:
    """One page, newest first.

    Args:
        connection: to read from.
        limit: most events of the page.
        cursor: the begin of the page.
        objects: only events of any of these objects, such as `deployment:<uid>`.
        reason: only events of this reason, or of several, separated by commas.
        since_id: only events after this one.

    Raises:
        BadCursorError: the cursor was not issued for this list.
    """
    before = open_cursor(cursor, (int,)) or [None]
    rows = await connection.fetch(
        """select id, at, reason, message, evidence, objects, subjects, actor, request_id from events
            where ($1::bigint is null or id < $1) and ($2::text[] is null or objects && $2)
              and ($3::text is null or reason = any(string_to_array($3, ','))) and ($4::bigint is null or id > $4)
            order by id desc limit $5""",
        *before,
        objects,
        reason,
        since_id,
        limit + 1,
    )
    return page_of([EventView.model_validate(dict(row)) for row in rows], limit, lambda view: (view.id,))


async def objects_named(connection: Reader, kind: str, name: str) -> list[str]:
    """An object's names in events, by the user's kind and name: one for each uid of that name that still exists."""
    match kind:
        case "deployment":
            rows = await connection.fetch("select uid from deployments where name = $1", name)
            return [f"deployment:{row['uid']}" for row in rows] or [f"deployment:{name}"]
        case "worker":
            rows = await connection.fetch("select id from workers where name = $1", name)
            return [f"worker:{row['id']}" for row in rows] or [f"worker:{name}"]
        case "policy":
            rows = await connection.fetch("select uid from policies where name = $1", name)
            return [f"policy:{row['uid']}" for row in rows] or [f"policy:{name}"]
        case "key":
            rows = await connection.fetch("select id from api_keys where name = $1", name)
            return [f"key:{row['id']}" for row in rows] or [f"key:{name}"]
        case _:
            return [f"{kind}:{name}"]
