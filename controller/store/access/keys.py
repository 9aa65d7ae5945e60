"""API keys: random, stored as hashes. At least one administrator's key stays valid."""

import secrets
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias

from sqlalchemy import func, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import col, select

from controller.domain.events import NewEvent
from controller.store.access.key_reads import (
    KEY_PREFIX,
    hash_secret,
)
from controller.store.access.orm_rows import KeyRow
from controller.store.core.database import Database
from controller.store.core.events import write_event_in_session
from controller.store.core.notify import CHANNEL, payloads
from controller.store.core.refusals import LastAdminKeyError, NotFoundError
from schemas.api.access import KeyCreated, KeyView, Role

_FIRST_KEY_LOCK: Final = 7_309_446_272  # an arbitrary constant: names this lock in the whole database


_VALID_ADMINISTRATORS: Final = (
    select(KeyRow.id)
    .where(col(KeyRow.role) == "admin", col(KeyRow.revoked_at).is_(None))
    .order_by(col(KeyRow.id))
    .with_for_update()
)


Keep: TypeAlias = Callable[[str], None]


def _nowhere(_key: str) -> None:
    """Keeps nothing."""


async def create_key(database: Database, role: Role, *, name: str = "", keep: Keep = _nowhere) -> KeyCreated:
    """Creates a key. Only the answer shows it. `keep` gets it before the commit; if `keep` raises there is no key."""
    async with database.session() as session:
        return await _create(session, role, name or role, keep)


async def create_first_key(database: Database, *, keep: Keep = _nowhere) -> KeyCreated | None:
    """Creates the first administrator's key; None if a key was ever created. Safe for two controllers at once."""
    async with database.session() as session:
        await session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _FIRST_KEY_LOCK})
        if (await session.execute(select(func.count()).select_from(KeyRow))).scalar_one():
            return None
        return await _create(session, "admin", "first", keep)


async def _create(session: AsyncSession, role: Role, name: str, keep: Keep) -> KeyCreated:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    row = KeyRow(id=uuid.uuid4(), name=name, role=role, hash=hash_secret(key))
    session.add(row)
    await session.flush()
    await session.refresh(row)
    await _announce(session, row.id)
    message = f"key {row.name} was created with the role {row.role}"
    await write_event_in_session(session, NewEvent("key_created", message, (f"key:{row.id}",), {"role": row.role}))
    keep(key)
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
        LastAdminKeyError: no other administrator's key is valid.
    """
    async with database.session() as session:
        # All at once and in one order: of two revocations that meet, the second one sees what the first one left.
        administrators = (await session.execute(_VALID_ADMINISTRATORS)).scalars().all()
        row = await session.get(KeyRow, as_uuid(key_id), with_for_update=True)
        if row is None:
            raise NotFoundError(f"no key has the id {key_id!r}; `gpuward key list` shows the ids")
        if row.revoked_at is None:
            if administrators == [row.id]:
                raise LastAdminKeyError(
                    f"key {row.name!r} is the only valid key of an administrator; create another one first: "
                    "gpuward key create --role admin"
                )
            row.revoked_at = (await session.execute(select(func.now()))).scalar_one()
            await _announce(session, row.id)
            event = NewEvent("key_revoked", f"key {row.name} was revoked", (f"key:{row.id}",), {"role": row.role})
            await write_event_in_session(session, event)
        return _view(row)


async def _announce(session: AsyncSession, key_id: uuid.UUID) -> None:
    """Tells every controller at the commit that this key has changed."""
    for payload in payloads({"key": [str(key_id)]}):
        await session.execute(text("select pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload})


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
