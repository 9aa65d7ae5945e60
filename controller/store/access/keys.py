"""API keys: random, stored as hashes. At least one administrator's key stays valid."""

import secrets
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

from msgspec.structs import asdict
from sqlalchemy import func, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import col, select

from controller.domain.events import NewEvent
from controller.store.access.audit_log import Entry, write_entry_in_session
from controller.store.access.key_reads import (
    KEY_PREFIX,
    hash_secret,
)
from controller.store.access.orm_rows import KeyRow
from controller.store.core.database import Database, view_of
from controller.store.core.events import CHANNEL, payloads
from controller.store.core.orm import write_event_in_session
from controller.store.core.refusals import AlreadyRotatedError, LastAdminKeyError, NotFoundError
from schemas.api.access import KeyCreated, KeyView, Role
from schemas.key_limits import NO_LIMITS, KeyLimits

_FIRST_KEY_LOCK: Final = 7_309_446_272  # an arbitrary constant: names this lock in the database


_LASTING_ADMINISTRATORS: Final = (
    select(KeyRow.id)
    .where(col(KeyRow.role) == "admin", col(KeyRow.revoked_at).is_(None), col(KeyRow.expires_at).is_(None))
    .order_by(col(KeyRow.id))
    .with_for_update()
)


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Changed fields of a key: those named in `fields`. None removes a limit."""

    fields: frozenset[str]
    name: str = ""
    limits: KeyLimits = NO_LIMITS
    expires_s: float | None = None  # from now


Keep: TypeAlias = Callable[[str], None]
_LIMITS: Final = ("models", "rpm", "tpm", "tokens_per_day", "parallel")


def _nowhere(_key: str) -> None:
    pass


async def create_key(
    database: Database,
    role: Role,
    *,
    name: str = "",
    limits: KeyLimits = NO_LIMITS,
    expires_s: float | None = None,
    keep: Keep = _nowhere,
    action: str = "",
) -> KeyCreated:
    """Creates a key. Only the answer shows it. `keep` gets it before the commit; if `keep` raises there is no key.

    `action`: the action in the audit log's entry, if the host itself makes the key; empty: the request has an entry.
    """
    async with database.session() as session:
        return await _create(session, role, name or role, keep, limits, expires_s, action)


async def create_first_key(database: Database, *, keep: Keep = _nowhere) -> KeyCreated | None:
    """Creates the first administrator's key; None if a key was ever created. Safe for two controllers at once."""
    async with database.session() as session:
        await session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _FIRST_KEY_LOCK})
        if (await session.execute(select(func.count()).select_from(KeyRow))).scalar_one():
            return None
        return await _create(session, "admin", "first", keep, action="key.first")


async def _create(
    session: AsyncSession,
    role: Role,
    name: str,
    keep: Keep,
    limits: KeyLimits = NO_LIMITS,
    expires_s: float | None = None,
    action: str = "",
) -> KeyCreated:
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    row = KeyRow(id=uuid.uuid4(), name=name, role=role, hash=hash_secret(key))
    _set_limits(row, limits)
    if expires_s is not None:
        row.expires_at = (await session.execute(select(func.now()))).scalar_one() + timedelta(seconds=expires_s)
    session.add(row)
    await session.flush()
    await session.refresh(row)
    await _announce(session, row.id)
    message = f"key {row.name} was created with the role {row.role}"
    evidence = {"role": row.role, **_shown(row)}
    await write_event_in_session(session, NewEvent("key_created", message, (f"key:{row.id}",), evidence))
    if action:
        await write_entry_in_session(session, Entry("host", action, "done", f"keys/{row.id}"))
    keep(key)
    return KeyCreated(key=key, **asdict(_view(row)))


async def update_key(
    database: Database, key_id: str, changes: KeyChanges, *, check: Callable[[Role], None] = lambda _role: None
) -> KeyView:
    """Changes a key in place. Its usage and its requests in flight stay counted.

    Args:
        database: the database that has the key.
        key_id: its id.
        changes: the changed fields.
        check: raises an error of its own if the changes do not fit the key's role.

    Raises:
        NotFoundError: no key has this id, or it is revoked.
        LastAdminKeyError: it is the only administrator's key that does not expire, and would expire.
    """
    async with database.session() as session:
        administrators = (await session.execute(_LASTING_ADMINISTRATORS)).scalars().all()
        row = await session.get(KeyRow, as_uuid(key_id), with_for_update=True)
        if row is None or row.revoked_at is not None:
            what = "no key has the id" if row is None else "a revoked key cannot be changed:"
            raise NotFoundError(f"{what} {key_id!r}; `gpuward key list` shows the ids")
        check(cast("Role", row.role))
        if changes.expires_s is not None and administrators == [row.id]:
            raise LastAdminKeyError(
                f"key {row.name!r} is the only key of an administrator that does not expire; create another one first: "
                "gpuward key create --role admin"
            )
        before = {"name": row.name, **_shown(row)}
        await _change(session, row, changes)
        after = {"name": row.name, **_shown(row)}
        changed = {name: [before.get(name), after.get(name)] for name in {*before, *after}}
        changed = {name: both for name, both in sorted(changed.items()) if both[0] != both[1]}
        if changed:
            row.changed += 1
            await _announce(session, row.id)
            message = f"key {row.name} was changed: {', '.join(changed)}"
            await write_event_in_session(session, NewEvent("key_changed", message, (f"key:{row.id}",), changed))
        return _view(row)


async def rotate_key(
    database: Database, key_id: str, *, overlap_s: float, expires_s: float | None = None
) -> KeyCreated:
    """Makes a key with the same role, limits and name. The old key expires after the overlap, or earlier.

    Args:
        database: the database that has the key.
        key_id: the old key's id.
        overlap_s: seconds for which both are valid.
        expires_s: seconds until the new key expires; None: the old key's lifetime, if it has one.

    Raises:
        NotFoundError: no key has this id, or it is no longer valid.
        AlreadyRotatedError: it has a successor.
        LastAdminKeyError: it is the only administrator's key that does not expire, and its successor would.
    """
    async with database.session() as session:
        administrators = (await session.execute(_LASTING_ADMINISTRATORS)).scalars().all()
        row = await session.get(KeyRow, as_uuid(key_id), with_for_update=True)
        now = (await session.execute(select(func.now()))).scalar_one()
        if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            what = "no key has the id" if row is None else "a key that is not valid cannot be rotated:"
            raise NotFoundError(f"{what} {key_id!r}; `gpuward key list` shows the ids")
        if row.rotated_to is not None:
            raise AlreadyRotatedError(f"key {row.name!r} has been rotated: its successor is {row.rotated_to}")
        if expires_s is not None and administrators == [row.id]:
            raise LastAdminKeyError(
                f"key {row.name!r} is the only key of an administrator that does not expire; "
                "leave out its successor's expiry"
            )
        if expires_s is None and row.expires_at is not None:
            expires_s = (row.expires_at - row.created_at).total_seconds()
        limits = KeyLimits(tuple(row.models), row.rpm, row.tpm, row.tokens_per_day, row.parallel)
        made = await _create(session, cast("Role", row.role), row.name, _nowhere, limits, expires_s)
        ends = now + timedelta(seconds=overlap_s)
        row.expires_at = ends if row.expires_at is None else min(ends, row.expires_at)
        row.rotated_to = uuid.UUID(made.id)
        row.changed += 1
        await _announce(session, row.id)
        message = f"key {row.name} was rotated; the old one expires at {row.expires_at:%Y-%m-%d %H:%M} UTC"
        objects = (f"key:{row.id}", f"key:{made.id}")
        evidence = {"expires_at": row.expires_at.isoformat()}
        await write_event_in_session(session, NewEvent("key_rotated", message, objects, evidence))
        return made


async def _change(session: AsyncSession, row: KeyRow, changes: KeyChanges) -> None:
    if "name" in changes.fields:
        row.name = changes.name
    _set_limits(row, changes.limits, only=changes.fields)
    if "expires_s" in changes.fields:
        now = (await session.execute(select(func.now()))).scalar_one()
        row.expires_at = None if changes.expires_s is None else now + timedelta(seconds=changes.expires_s)


def _set_limits(row: KeyRow, limits: KeyLimits, *, only: Collection[str] = _LIMITS) -> None:
    for name in _LIMITS:
        if name in only:
            value = getattr(limits, name)
            setattr(row, name, list(value) if name == "models" else value)


def _shown(row: KeyRow) -> dict[str, Any]:
    """Limits and expiry that are set, as events show them."""
    limits: dict[str, Any] = {name: value for name in _LIMITS if (value := getattr(row, name))}
    return limits | ({"expires_at": row.expires_at.isoformat()} if row.expires_at else {})


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
        # All of them in one order, so that the second of two concurrent revocations reads the result of the first.
        administrators = (await session.execute(_LASTING_ADMINISTRATORS)).scalars().all()
        row = await session.get(KeyRow, as_uuid(key_id), with_for_update=True)
        if row is None:
            raise NotFoundError(f"no key has the id {key_id!r}; `gpuward key list` shows the ids")
        if row.revoked_at is None:
            if administrators == [row.id]:
                raise LastAdminKeyError(
                    f"key {row.name!r} is the only valid key of an administrator that does not expire; create "
                    "another one first: gpuward key create --role admin"
                )
            row.revoked_at = (await session.execute(select(func.now()))).scalar_one()
            await _announce(session, row.id)
            event = NewEvent("key_revoked", f"key {row.name} was revoked", (f"key:{row.id}",), {"role": row.role})
            await write_event_in_session(session, event)
        return _view(row)


async def _announce(session: AsyncSession, key_id: uuid.UUID) -> None:
    """Notifies every controller at the commit that this key has changed."""
    for payload in payloads({"key": [str(key_id)]}):
        await session.execute(text("select pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload})


def as_uuid(text_id: str) -> uuid.UUID:
    """An id that a user wrote; an invalid UUID becomes a UUID that no object has."""
    try:
        return uuid.UUID(text_id)
    except ValueError:
        return uuid.UUID(int=0)


def _view(row: KeyRow) -> KeyView:
    return view_of(KeyView, row.model_dump())
