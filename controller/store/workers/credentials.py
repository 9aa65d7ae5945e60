"""Rotation of workers' credentials, which are stored only as hashes.

The secret of the agent's proxy changes together with the credential. It is not hashed, because gateways send it.
"""

import secrets
from collections.abc import Sequence

from controller.store.access.proxy_secrets import PURPOSE, write_next_proxy_secret
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Connection

# The next credential becomes the worker's once the agent connects with it: `sessions.begin_session`.
_DUE = """
    select id from workers
     where id = any($1) and deleted_at is null and credential_since <= clock_timestamp() - $2 * interval '1 second'
     order by credential_since limit $3"""
_NEXT = """
    update workers set next_credential_hash = $3, next_proxy_secret = null
     where id = $1 and session = $2 and deleted_at is null
    returning true"""
_NEXT_PLAIN = "update workers set next_proxy_secret = $2 where id = $1"


def new_proxy_secret() -> str:
    """256 random bits, with which gateways and controllers authenticate to an agent's proxy."""
    return secrets.token_urlsafe(32)


async def read_due(connection: Connection, workers: Sequence[str], older_than_s: float, limit: int) -> list[str]:
    """Returns the workers whose credential is older than that, the oldest first."""
    rows = await connection.fetch(_DUE, workers, older_than_s, limit)
    return [str(row["id"]) for row in rows]


async def write_next(
    connection: Connection,
    worker: str,
    session: int,
    credential_hash: bytes,
    proxy_secret: str | None,
    keys: SecretKeys = NO_KEYS,
) -> bool:
    """Stores the next credential of a worker, in place of an unused one. False: the session is over.

    `proxy_secret`: the next secret of its agent's proxy; None: the present secret stays.
    """
    if not await connection.fetchval(_NEXT, worker, session, credential_hash):
        return False
    plain = await write_next_proxy_secret(connection, worker, proxy_secret, keys.branch(PURPOSE))
    if plain is not None:
        await connection.execute(_NEXT_PLAIN, worker, plain)
    return True
