"""Credentials of workers that are old enough to be replaced, and the next ones. Both are kept as hashes alone.

With a credential the secret of the agent's proxy changes, which is kept as it is: gateways show it.
"""

import secrets
from collections.abc import Sequence

from controller.store.core.database import Connection

# The agent's connection with the next one makes it the worker's: `sessions.begin_session`.
_DUE = """
    select id from workers
     where id = any($1) and deleted_at is null and credential_since <= clock_timestamp() - $2 * interval '1 second'
     order by credential_since limit $3"""
_NEXT = """
    update workers set next_credential_hash = $3, next_proxy_secret = $4
     where id = $1 and session = $2 and deleted_at is null
    returning true"""


def new_proxy_secret() -> str:
    """What gateways and controllers show to the proxy of an agent: 256 random bits."""
    return secrets.token_urlsafe(32)


async def read_due(connection: Connection, workers: Sequence[str], older_than_s: float, limit: int) -> list[str]:
    """Those of these workers whose credential is so old, the oldest first."""
    rows = await connection.fetch(_DUE, workers, older_than_s, limit)
    return [str(row["id"]) for row in rows]


async def write_next(
    connection: Connection, worker: str, session: int, credential_hash: bytes, proxy_secret: str | None
) -> bool:
    """Stores the next credential of a worker, in place of one that was not used. False: the session is over.

    `proxy_secret`: the next one of its agent's proxy; None: the present one stays.
    """
    return bool(await connection.fetchval(_NEXT, worker, session, credential_hash, proxy_secret))
