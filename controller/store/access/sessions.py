"""Sessions of browsers: random, stored as hashes, valid until their key ends and for at most `SESSION_S`."""

import secrets
from datetime import timedelta
from typing import Final

from controller.domain.events import NewEvent
from controller.store.access.key_reads import SESSION_PREFIX, hash_secret, session_credential
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events

SESSION_S: Final = 12 * 3600.0
MAX_OF_KEY: Final = 100  # beyond it the oldest sessions of the key end

_OPEN: Final = """
insert into browser_sessions (hash, key_id, expires_at)
select $1, id, now() + $3 from api_keys
where id = $2::uuid and revoked_at is null and (expires_at is null or expires_at > now())
"""
_CUT: Final = """
delete from browser_sessions where expires_at <= now() or hash in (
    select hash from browser_sessions where key_id = $1::uuid order by created_at desc offset $2
)
"""


async def open_session(database: Database, key_id: str, key_name: str) -> str | None:
    """Opens a session of a key and returns its token; None if the key is not valid."""
    token = SESSION_PREFIX + secrets.token_urlsafe(32)
    async with database.transaction() as connection:
        digest = hash_secret(session_credential(token))
        opened = await connection.execute(_OPEN, digest, key_id, timedelta(seconds=SESSION_S))
        if opened == "INSERT 0 0":
            return None
        await connection.execute(_CUT, key_id, MAX_OF_KEY)
        message = f"key {key_name} logged in with a browser"
        await write_events(connection, [NewEvent("session_opened", message, (f"key:{key_id}",))])
        await notify(connection, "key", [key_id])
    return token


async def close_session(database: Database, token: str) -> None:
    """Ends a session, if it has not ended."""
    async with database.transaction() as connection:
        query = (
            "delete from browser_sessions s using api_keys k where s.hash = $1 and k.id = s.key_id "
            "returning k.id::text, k.name"
        )
        for row in await connection.fetch(query, hash_secret(session_credential(token))):
            message = f"key {row['name']} logged out with a browser"
            await write_events(connection, [NewEvent("session_closed", message, (f"key:{row['id']}",))])
            await notify(connection, "key", [row["id"]])
