"""The secrets of agents' proxies, which gateways read: sealed under a key that is derived from the secrets' key.

They are sealed once every gateway has reported that it has that key. Until then they are plain, since gateways of the
version before read no sealed secrets. In this module `keys` are the derived keys.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from controller.store.access.secret_keys import SecretKeys, UnreadableSecretError
from controller.store.core.database import Row

PURPOSE: Final = b"gpuward proxy secrets"  # for which the key is derived
# For a query that has the workers as `w`.
PROXY_SECRET: Final = "w.id as worker_id, w.proxy_secret, ps.sealed as proxy_sealed, ps.key_id as proxy_key_id"  # noqa: S105 - no secret
JOIN_PROXY_SECRET: Final = "left join sealed_proxy_secrets ps on ps.worker_id = w.id"  # noqa: S105 - as above
_BATCH: Final = 200
# After a crash the database knows no gateways until they report again, as they do each second.
_REPORTED_FOR_S: Final = 10.0
_ACTIVE: Final = "select proxy_key_id from sealing where id = 1"
_ACTIVATE: Final = "update sealing set proxy_key_id = $1 where id = 1"
_GATEWAYS: Final = """
    select g.name, $1 = any(coalesce(k.key_ids, '{}')) as able,
           coalesce(k.since < clock_timestamp() - make_interval(secs => $2), false) as settled
      from gateways g left join gateway_proxy_keys k on k.gateway_id = g.id order by g.name"""
_REPORT: Final = """
    insert into gateway_proxy_keys as k (gateway_id, key_ids)
    select id, $2 from gateways where id = $1
        on conflict (gateway_id) do update set key_ids = excluded.key_ids"""
_PLAIN: Final = "update workers set proxy_secret = $2 where id = $1"
_SEALED: Final = """
    insert into sealed_proxy_secrets (worker_id, sealed, key_id) values ($1, $2, $3)
        on conflict (worker_id) do update set sealed = excluded.sealed, key_id = excluded.key_id"""
_NEXT_SEALED: Final = """
    insert into sealed_proxy_secrets (worker_id, next_sealed, next_key_id) values ($1, $2, $3)
        on conflict (worker_id) do update set next_sealed = excluded.next_sealed, next_key_id = excluded.next_key_id"""
_TO_SEAL: Final = """
    select w.id from workers w left join sealed_proxy_secrets s on s.worker_id = w.id
     where ($1::uuid is null or w.id > $1)
       and (w.proxy_secret is not null or w.next_proxy_secret is not null or s.key_id <> $2 or s.next_key_id <> $2)
     order by w.id limit $3"""
_LOCK: Final = "select id from workers where id = any($1) order by id for no key update"
_READ: Final = """
    select w.id, w.proxy_secret as plain, w.next_proxy_secret as next_plain,
           s.sealed, s.key_id, s.next_sealed, s.next_key_id
      from workers w left join sealed_proxy_secrets s on s.worker_id = w.id where w.id = any($1) order by w.id"""
_FORGET_PLAIN: Final = "update workers set proxy_secret = null, next_proxy_secret = null where id = any($1)"
_SEAL: Final = """
    insert into sealed_proxy_secrets (worker_id, sealed, key_id, next_sealed, next_key_id) values ($1, $2, $3, $4, $5)
        on conflict (worker_id) do update
       set sealed = excluded.sealed, key_id = excluded.key_id,
           next_sealed = excluded.next_sealed, next_key_id = excluded.next_key_id"""
_IDS: Final = """
    select receipt_key_id as id from sealing union select proxy_key_id from sealing
    union select key_id from sealed_proxy_secrets union select next_key_id from sealed_proxy_secrets"""


@dataclass(frozen=True, slots=True)
class StoredProxySecret:
    """A worker's secret as it is stored: plain, or sealed under the key of this id."""

    worker_id: str
    plain: str | None = field(repr=False, default=None)
    sealed: bytes | None = None
    key_id: str = ""

    def opened(self, keys: SecretKeys) -> str | None:
        """The secret; None if none of these keys opens it."""
        if self.plain is not None or self.sealed is None:
            return self.plain
        try:
            return keys.open(_bound_to(self.worker_id), self.key_id, self.sealed)
        except UnreadableSecretError:
            return None


def stored_proxy_secret(row: Row) -> StoredProxySecret:
    """The secret in a row with the columns `PROXY_SECRET`."""
    return StoredProxySecret(str(row["worker_id"]), row["proxy_secret"], row["proxy_sealed"], row["proxy_key_id"] or "")


async def write_proxy_secret(connection: Any, worker_id: Any, secret: str, keys: SecretKeys) -> None:
    """Writes the secret of a worker whose row is locked: sealed, if sealing has started."""
    sealed, key_id = await _sealed(connection, worker_id, secret, keys)
    await connection.execute(_PLAIN, worker_id, None if sealed else secret)
    await connection.execute(_SEALED, worker_id, sealed, key_id)


async def write_next_proxy_secret(connection: Any, worker_id: Any, secret: str | None, keys: SecretKeys) -> str | None:
    """Seals the next secret of a worker whose row is locked; returns it if it must be stored plain."""
    sealed, key_id = (None, None) if secret is None else await _sealed(connection, worker_id, secret, keys)
    await connection.execute(_NEXT_SEALED, worker_id, sealed, key_id)
    return None if sealed else secret


async def _sealed(connection: Any, worker_id: Any, secret: str, keys: SecretKeys) -> tuple[bytes | None, str | None]:
    active: str = await connection.fetchval(_ACTIVE)
    await keys.learn((active,))
    if active not in keys.ids:
        return None, None
    return keys.seal(_bound_to(str(worker_id)), secret, active), active


async def report_proxy_keys(connection: Any, gateway: Any, key_ids: list[str]) -> None:
    """Writes the ids of a gateway's keys."""
    await connection.execute(_REPORT, gateway, key_ids)


async def begin_sealing(connection: Any, keys: SecretKeys) -> bool:
    """Starts sealing under the current key if each gateway has it; returns whether it is in use. In a transaction."""
    if not keys.current:
        return False
    if await connection.fetchval(_ACTIVE) == keys.current:
        return True
    gateways = await connection.fetch(_GATEWAYS, keys.current, _REPORTED_FOR_S)
    if not gateways or not all(gateway["able"] and gateway["settled"] for gateway in gateways):
        return False
    await connection.execute(_ACTIVATE, keys.current)
    return True


async def seal_some(connection: Any, keys: SecretKeys, after: Any = None) -> Any:
    """Seals a batch of secrets under the current key, in a transaction. A secret that no key opens stays as it is.

    Returns:
        The id after which the next batch starts; None after the last.
    """
    ids = [row["id"] for row in await connection.fetch(_TO_SEAL, after, keys.current, _BATCH)]
    if not ids:
        return None
    await connection.execute(_LOCK, ids)
    rows = await connection.fetch(_READ, ids)  # as they are now that none of them can change
    await keys.learn(id_ for row in rows for id_ in (row["key_id"], row["next_key_id"]) if id_)
    sealed = [values for row in rows if (values := _resealed(row, keys)) is not None]
    await connection.executemany(_SEAL, sealed)
    await connection.execute(_FORGET_PLAIN, [values[0] for values in sealed])
    return ids[-1] if len(ids) == _BATCH else None


def _resealed(row: Any, keys: SecretKeys) -> tuple[Any, ...] | None:
    """The values of `_SEAL`; None if a secret cannot be opened, which the worker's next hello replaces."""
    worker = str(row["id"])
    values: list[Any] = [row["id"]]
    for prefix in ("", "next_"):
        stored = StoredProxySecret(worker, row[prefix + "plain"], row[prefix + "sealed"], row[prefix + "key_id"] or "")
        secret = stored.opened(keys)
        if secret is None and stored.sealed is not None:
            return None
        values += (None, None) if secret is None else (keys.seal(_bound_to(worker), secret), keys.current)
    return tuple(values)


async def read_key_ids(connection: Any) -> frozenset[str]:
    """The ids of the keys under which receipts' key and proxies' secrets are or will be sealed."""
    return frozenset(row["id"] for row in await connection.fetch(_IDS) if row["id"])


def _bound_to(worker_id: str) -> str:
    return f"\0proxy_secret\0{worker_id}"
