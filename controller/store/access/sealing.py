"""Seals the key of receipts and the secrets of agents' proxies, as far as all that must open them can."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from controller.domain.attention import SealingState
from controller.store.access.proxy_secrets import PURPOSE, begin_sealing, seal_some
from controller.store.access.receipt_key import JOIN_RECEIPT_KEY, RECEIPT_KEY, opened_receipt_key, seal_receipt_key
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database, Reader

_STATE: Final = f"""
    select {RECEIPT_KEY}, z.proxy_key_id,
           exists (select from workers where proxy_secret is not null or next_proxy_secret is not null) as plain
      from lease l {JOIN_RECEIPT_KEY} where l.id = 1"""  # noqa: S608 - constants
_GATEWAYS: Final = """
    select g.name, coalesce(k.key_ids, '{}') as key_ids
      from gateways g left join gateway_proxy_keys k on k.gateway_id = g.id order by g.name"""

Guard = Callable[[Any], Awaitable[None]]


async def unguarded(_connection: Any) -> None:
    """For writers of all terms."""


async def is_sealing(database: Database) -> bool:
    """Whether secrets of proxies are sealed already, under whichever key."""
    async with database.connection() as connection:
        return bool(await connection.fetchval("select proxy_key_id <> '' from sealing where id = 1"))


async def read_sealing(connection: Reader, keys: SecretKeys) -> SealingState:
    """The state of sealing under `keys`."""
    (row,) = await connection.fetch(_STATE)
    gateways = await connection.fetch(_GATEWAYS)
    proxies, active = keys.branch(PURPOSE), row["proxy_key_id"]

    def without(key_id: str) -> list[str]:
        return [gateway["name"] for gateway in gateways if key_id and key_id not in gateway["key_ids"]]

    locked_out = without(active)
    waits_for = without(proxies.current) if active != proxies.current else []
    return SealingState(
        plain=not keys.current and bool(row["plain"] or row["receipt_key"]),
        waits_for=[name for name in waits_for if name not in locked_out],
        locked_out=locked_out,
        receipts_unreadable=await opened_receipt_key(row, keys) is None,
    )


async def seal_keys(database: Database, keys: SecretKeys, guard: Guard = unguarded) -> bool:
    """Seals plain values, and those under an earlier key, under the present key. Without a key nothing changes.

    Args:
        database: holds them.
        keys: the keys that encrypt secrets.
        guard: called first in each transaction.

    Returns:
        Whether the secrets of proxies are sealed under the present key; false while a gateway has not reported it.
    """
    if not keys.current:
        return False
    proxies, after = keys.branch(PURPOSE), None
    async with database.transaction() as connection:
        await guard(connection)
        await seal_receipt_key(connection, keys)
        started = await begin_sealing(connection, proxies)
    more = started
    while more:
        async with database.transaction() as connection:
            await guard(connection)
            after = await seal_some(connection, proxies, after)
        more = after is not None
    return started
