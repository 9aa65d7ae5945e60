"""How the table classes say what a column is, in one word each."""

from typing import Any

from sqlalchemy import Column, FetchedValue
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.types import TypeEngine, UserDefinedType
from sqlmodel import Field

TIME = TIMESTAMP(timezone=True)
Kind = TypeEngine[Any] | type[TypeEngine[Any]]


class Xid8(UserDefinedType[int]):
    """PostgreSQL's transaction number."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in SQL."""
        return "xid8"


XID8 = Xid8()


def key(kind: Kind) -> Any:
    """Part of the primary key."""
    return Field(sa_column=Column(kind, primary_key=True, autoincrement=False, nullable=False))


def given(kind: Kind) -> Any:
    """Never null, and never filled in by the database."""
    return Field(sa_column=Column(kind, nullable=False))


def filled(kind: Kind, *, key: bool = False) -> Any:
    """Filled in by the database where nothing is given."""
    column: Column[Any] = Column(kind, nullable=False, primary_key=key, server_default=FetchedValue())
    return Field(default=None, sa_column=column)


def maybe(kind: Kind) -> Any:
    """May be null."""
    return Field(default=None, sa_column=Column(kind, nullable=True))
