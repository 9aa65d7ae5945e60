"""What may be forgotten: old events, spent join tokens, webhooks that are over.

In bounded portions, so that no delete holds others up.
"""

from typing import Any, Final

_PORTION: Final = 5_000
_TOKENS_KEPT_DAYS: Final = 30


async def prune(connection: Any, *, keep_events_days: int) -> int:
    """Deletes one portion of what is too old; returns how many events went."""
    gone = await connection.fetchval(
        """with old as (delete from events where id in (
               select id from events where at < now() - make_interval(days => $1) order by id limit $2) returning 1)
           select count(*) from old""",
        keep_events_days,
        _PORTION,
    )
    await connection.execute(
        "delete from join_tokens where coalesce(used_at, revoked_at, expires_at) < now() - make_interval(days => $1)",
        _TOKENS_KEPT_DAYS,
    )
    await connection.execute(
        """delete from webhook_deliveries where id in (
               select id from webhook_deliveries where finished_at < now() - make_interval(days => $1) limit $2)""",
        keep_events_days,
        _PORTION,
    )
    return int(gone)
