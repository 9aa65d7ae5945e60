"""What checks of keys read, without an ORM: who owns a key, by its hash."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.access import Role
from schemas.key_limits import NO_LIMITS, KeyLimits

KEY_PREFIX: Final = "gpw_"
_COLUMNS: Final = (
    "hash, id, name, role, models, rpm, tpm, tokens_per_day, parallel, "
    "extract(epoch from expires_at - now())::float8 as expires_in_s"
)
_VALID: Final = "revoked_at is null and (expires_at is null or expires_at > now())"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as its key identifies it.

    Attributes:
        limits: on its requests to models.
        expires_in_s: when it was read; None: never.
    """

    key_id: str
    name: str
    role: Role
    limits: KeyLimits = NO_LIMITS
    expires_in_s: float | None = None


def hash_secret(secret: str) -> bytes:
    """The stored hash of a random secret, which is too long to be guessed: no salt and no slow hash are needed."""
    return hashlib.sha256(secret.encode()).digest()


async def read_keys(connection: Reader) -> dict[bytes, Principal]:
    """All valid keys, by their hash."""
    return _by_hash(await connection.fetch(f"select {_COLUMNS} from api_keys where {_VALID}"))  # noqa: S608 - constants


async def find_keys(connection: Reader, hashes: Collection[bytes]) -> dict[bytes, Principal]:
    """Those of these keys that exist and are valid, by their hash."""
    query = f"select {_COLUMNS} from api_keys where hash = any($1::bytea[]) and {_VALID}"  # noqa: S608 - constants
    return _by_hash(await connection.fetch(query, list(hashes)))


async def count_keys(connection: Reader) -> tuple[int, int]:
    """How many valid keys there are, and how many changes were made to all. No change leaves both as they were."""
    (row,) = await connection.fetch(
        f"select count(*) filter (where {_VALID}) as valid, count(*) + sum(changed) as changes from api_keys"  # noqa: S608
    )
    return row["valid"], int(row["changes"] or 0)


def _by_hash(rows: Iterable[Any]) -> dict[bytes, Principal]:
    return {
        row["hash"]: Principal(
            str(row["id"]),
            row["name"],
            row["role"],
            KeyLimits(tuple(row["models"]), row["rpm"], row["tpm"], row["tokens_per_day"], row["parallel"]),
            row["expires_in_s"],
        )
        for row in rows
    }
