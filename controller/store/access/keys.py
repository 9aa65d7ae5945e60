"""API keys: random, stored as hashes, checked through a small cache whose lifetime bounds that of revoked keys."""

import hashlib
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, text
from sqlmodel import col, select

from controller.store.access.orm_rows import KeyRow
from controller.store.core.database import Database
from controller.store.core.refusals import NotFoundError
from schemas.api.access import KeyCreated, KeyView, Role

KEY_PREFIX: Final = "gpw_"
CACHE_TTL_S: Final = 3.0
CACHE_SIZE: Final = 4096
_MAX_KEY_CHARS: Final = 256
_FIRST_KEY_LOCK: Final = 7_309_446_272  # an arbitrary constant: names this lock in the whole database


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as its key identifies it."""

    key_id: str
    name: str
    role: Role


def hash_secret(secret: str) -> bytes:
    """The stored hash of a random secret, which is too long to be guessed: no salt and no slow hash are needed."""
    return hashlib.sha256(secret.encode()).digest()


async def create_key(database: Database, role: Role, *, name: str = "") -> KeyCreated:
    """Creates a key. Only the answer shows it."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    row = KeyRow(id=uuid.uuid4(), name=name or role, role=role, hash=hash_secret(key))
    async with database.session() as session:
        session.add(row)
        await session.flush()
        await session.refresh(row)
    return KeyCreated(key=key, **_view(row).model_dump())


async def create_first_key(database: Database) -> KeyCreated | None:
    """Creates the first administrator's key; None if a key was ever created. Safe for two controllers at once."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    async with database.session() as session:
        await session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _FIRST_KEY_LOCK})
        if (await session.execute(select(func.count()).select_from(KeyRow))).scalar_one():
            return None
        row = KeyRow(id=uuid.uuid4(), name="first", role="admin", hash=hash_secret(key))
        session.add(row)
        await session.flush()
        await session.refresh(row)
    return KeyCreated(key=key, **_view(row).model_dump())


async def list_keys(database: Database) -> list[KeyView]:
    """All keys, including revoked ones, oldest first."""
    async with database.session() as session:
        rows = (await session.execute(select(KeyRow).order_by(col(KeyRow.created_at), col(KeyRow.id)))).scalars()
        return [_view(row) for row in rows]


async def revoke_key(database: Database, key_id: str) -> KeyView:
    """Revokes a key; repeating it changes nothing.

    Raises:
        NotFoundError: no key has this id.
    """
    async with database.session() as session:
        row = await session.get(KeyRow, as_uuid(key_id), with_for_update=True)
        if row is None:
            raise NotFoundError(f"no key has the id {key_id!r}; `gpuward key list` shows the ids")
        if row.revoked_at is None:
            row.revoked_at = (await session.execute(select(func.now()))).scalar_one()
        return _view(row)


class KeyRing:
    """Checks keys. Caches valid ones for `ttl_s` seconds, so a revocation takes effect within that time.

    Args:
        database: where the keys are.
        ttl_s: how long a valid key is cached.
        monotonic: seconds that never go backwards.
    """

    def __init__(
        self, database: Database, *, ttl_s: float = CACHE_TTL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()

    async def authenticate(self, key: str) -> Principal | None:
        """The owner of the key; None if it is unknown or revoked."""
        if not key.startswith(KEY_PREFIX) or len(key) > _MAX_KEY_CHARS:
            return None
        digest = hash_secret(key)
        known = self._known.get(digest)
        if known is not None and self._monotonic() < known[1]:
            return known[0]
        self._known.pop(digest, None)
        checked_at = self._monotonic()
        async with self._database.connection() as connection:
            query = "select id, name, role from api_keys where hash = $1 and revoked_at is null"
            row = await connection.fetchrow(query, digest)
        if row is None:
            return None
        principal = Principal(str(row["id"]), row["name"], row["role"])
        self._known[digest] = (principal, checked_at + self._ttl_s)
        while len(self._known) > CACHE_SIZE:
            self._known.popitem(last=False)
        return principal


def as_uuid(text_id: str) -> uuid.UUID:
    """An id as a user wrote it; an invalid UUID becomes one that no object has."""
    try:
        return uuid.UUID(text_id)
    except ValueError:
        return uuid.UUID(int=0)


def _view(row: KeyRow) -> KeyView:
    return KeyView.model_validate(
        {"id": str(row.id), "name": row.name, "role": row.role, "created_at": row.created_at,
         "revoked_at": row.revoked_at}
    )  # fmt: skip
