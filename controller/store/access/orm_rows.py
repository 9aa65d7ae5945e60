"""Tables that are queried row by row, as SQLModel classes; all other tables are read and written set-based, in SQL.

Private to `store/`. A test compares the classes with the migrated schema. Constraints and indexes live in the
migrations alone: the classes never create a table.
"""

import uuid as uuids
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, FetchedValue, Integer, LargeBinary, Text, Uuid
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeEngine
from sqlmodel import Field, SQLModel

_TIME = TIMESTAMP(timezone=True)
_Kind = TypeEngine[Any] | type[TypeEngine[Any]]


def _key(kind: _Kind) -> Any:
    """The primary key."""
    return Field(sa_column=Column(kind, primary_key=True, autoincrement=False, nullable=False))


def _required(kind: _Kind) -> Any:
    """Never null, without a default."""
    return Field(sa_column=Column(kind, nullable=False))


def _default(kind: _Kind) -> Any:
    """Never null; the database has a default."""
    return Field(default=None, sa_column=Column(kind, nullable=False, server_default=FetchedValue()))


def _nullable(kind: _Kind) -> Any:
    """May be null."""
    return Field(default=None, sa_column=Column(kind, nullable=True))


class KeyRow(SQLModel, table=True):
    """An API key, by its hash."""

    __tablename__ = "api_keys"
    id: uuids.UUID = _key(Uuid)
    name: str = _required(Text)
    role: str = _required(Text)
    hash: bytes = _required(LargeBinary)
    created_at: datetime = _default(_TIME)
    revoked_at: datetime | None = _nullable(_TIME)
    models: list[str] = _default(ARRAY(Text))
    rpm: int | None = _nullable(Integer)
    tpm: int | None = _nullable(Integer)
    tokens_per_day: int | None = _nullable(BigInteger)
    parallel: int | None = _nullable(Integer)
    expires_at: datetime | None = _nullable(_TIME)
    changed: int = _default(Integer)
    used_at: datetime | None = _nullable(_TIME)
    rotated_to: uuids.UUID | None = _nullable(Uuid)


class TokenRow(SQLModel, table=True):
    """A join token, by its hash."""

    __tablename__ = "join_tokens"
    id: uuids.UUID = _key(Uuid)
    hash: bytes = _required(LargeBinary)
    created_at: datetime = _default(_TIME)
    expires_at: datetime = _required(_TIME)
    used_at: datetime | None = _nullable(_TIME)
    used_by: str | None = _nullable(Text)
    revoked_at: datetime | None = _nullable(_TIME)
    uses: int = _default(Integer)
    max_uses: int = _default(Integer)
