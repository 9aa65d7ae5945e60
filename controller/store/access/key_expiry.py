"""Expiry of API keys, for attention and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.store.core.database import Reader

REMIND: Final = "7 days"  # before a key expires
KEY_STATES: Final = ("lasting", "expiring", "expired")
# Keys that need a reminder: without a successor, and not made for a few days only.
_MINDED: Final = f"""revoked_at is null and rotated_to is null and created_at < expires_at - interval '{REMIND}'"""
EXPIRING: Final = f"{_MINDED} and expires_at > now() and expires_at < now() + interval '{REMIND}'"
_KEYS: Final = f"""
    select role, case when expires_at <= now() then 'expired' when {EXPIRING} then 'expiring' else 'lasting' end
               as state, count(*) as n,
           min(extract(epoch from expires_at)) filter (where expires_at > now() and {_MINDED})::float8 as next_s
      from api_keys where revoked_at is null and (rotated_to is null or expires_at > now())
     group by 1, 2"""  # noqa: S608 - constants, no input


@dataclass(frozen=True, slots=True)
class KeyExpiry:
    """Keys that are not revoked.

    Attributes:
        keys: their number, by role and state (`KEY_STATES`). An expired key that has a successor does not count.
        next_s: time of the next expiry, in seconds since 1970, by role; keys that need no reminder do not count.
    """

    keys: Mapping[tuple[str, str], int] = field(default_factory=dict)
    next_s: Mapping[str, float] = field(default_factory=dict)


async def read_key_expiry(connection: Reader) -> KeyExpiry:
    rows = await connection.fetch(_KEYS)
    next_s: dict[str, float] = {}
    for row in rows:
        if row["next_s"] is not None:
            next_s[row["role"]] = min(row["next_s"], next_s.get(row["role"], row["next_s"]))
    return KeyExpiry({(row["role"], row["state"]): row["n"] for row in rows}, next_s)
