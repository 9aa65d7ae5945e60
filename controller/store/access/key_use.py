"""When keys were used last: written at most once a minute, without waiting for locks."""

from collections.abc import Collection
from typing import Any, Final

NOTED_EVERY_S: Final = 60.0
_NOTE: Final = f"""
    update api_keys set used_at = clock_timestamp()
     where id in (select id from api_keys
                   where id = any($1::uuid[])
                     and (used_at is null or used_at < clock_timestamp() - interval '{NOTED_EVERY_S * 0.9:g} s')
                   order by id for no key update skip locked)"""  # noqa: S608 - a constant, no input


async def note_use(connection: Any, key_ids: Collection[str]) -> None:
    """Records that these keys (ids) are used now."""
    await connection.execute(_NOTE, sorted(key_ids))
