"""The key of receipts and of proofs to agents: sealed under the secrets' key. It is never replaced.

If no key of this controller opens it, it is unknown: then no report of an agent counts as false.
"""

from typing import Any, Final

from controller.store.access.secret_keys import SecretKeys, UnreadableSecretError
from controller.store.core.database import Row

_NAME: Final = "\0receipt_key"  # no secret can have this name
# For a query that has the lease as `l`.
RECEIPT_KEY: Final = "l.receipt_key, z.receipt_key as sealed_receipt_key, z.receipt_key_id"
JOIN_RECEIPT_KEY: Final = "left join sealing z on z.id = l.id"
_READ: Final = f"select {RECEIPT_KEY} from lease l {JOIN_RECEIPT_KEY} where l.id = 1 for no key update of l"  # noqa: S608 - constants
_SEAL: Final = "update sealing set receipt_key = $1, receipt_key_id = $2 where id = 1"
_FORGET_PLAIN: Final = "update lease set receipt_key = null where id = 1"


async def opened_receipt_key(row: Row, keys: SecretKeys) -> bytes | None:
    """The key in a row with the columns `RECEIPT_KEY`; None if it is sealed and no key here opens it."""
    plain: bytes | None = row["receipt_key"]
    if plain is not None or row["sealed_receipt_key"] is None:
        return plain
    await keys.learn((row["receipt_key_id"],))
    try:
        return bytes.fromhex(keys.open(_NAME, row["receipt_key_id"], row["sealed_receipt_key"]))
    except UnreadableSecretError:
        return None


async def seal_receipt_key(connection: Any, keys: SecretKeys) -> None:
    """Seals it under the current key, if there is one and it can be opened. In a transaction."""
    row = await connection.fetchrow(_READ)
    if not keys.current or (row["receipt_key"] is None and row["receipt_key_id"] == keys.current):
        return
    key = await opened_receipt_key(row, keys)
    if key is not None:
        await connection.execute(_SEAL, keys.seal(_NAME, key.hex()), keys.current)
        await connection.execute(_FORGET_PLAIN)
