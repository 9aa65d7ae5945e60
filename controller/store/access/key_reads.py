"""What checks of keys read, without an ORM: who owns a key, by its hash."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.access import Role

KEY_PREFIX: Final = "gpw_"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as its key identifies it."""

    key_id: str
    name: str
    role: Role


def hash_secret(secret: str) -> bytes:
    """The stored hash of a random secret, which is too long to be guessed: no salt and no slow hash are needed."""
    return hashlib.sha256(secret.encode()).digest()


async def read_keys(connection: Reader) -> dict[bytes, Principal]:
    """All unrevoked keys, by their hash."""
    return _by_hash(await connection.fetch("select hash, id, name, role from api_keys where revoked_at is null"))


async def find_keys(connection: Reader, hashes: Collection[bytes]) -> dict[bytes, Principal]:
    """Those of these keys that exist and are not revoked, by their hash."""
    query = "select hash, id, name, role from api_keys where hash = any($1::bytea[]) and revoked_at is null"
    return _by_hash(await connection.fetch(query, list(hashes)))


async def count_keys(connection: Reader) -> tuple[int, int]:
    """How many keys there are, and how many of them are revoked. No change of keys leaves both as they were."""
    (row,) = await connection.fetch("select count(*) as all_keys, count(revoked_at) as revoked from api_keys")
    return row["all_keys"], row["revoked"]


def _by_hash(rows: Iterable[Any]) -> dict[bytes, Principal]:
    return {row["hash"]: Principal(str(row["id"]), row["name"], row["role"]) for row in rows}
