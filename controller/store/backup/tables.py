"""The tables of a schema that a backup keeps, and the order in which they can be loaded. Read from the catalog."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from controller.store.backup.archive import Partition
from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S

# Tables that are computed again or outdated soon. Unlogged tables are omitted as well.
LEFT_OUT: Final = frozenset(
    {
        "alembic_version",  # the manifest names the revision
        "samples",  # hours old at best; their minutes are kept
        "rollup_progress",  # numbers of transactions, which are those of one server
        "browser_sessions",  # users log in again
        "found_processes",  # agents report them again
    }
)
_TABLES: Final = """
    select c.relname::text as name,
           array_agg(a.attname::text order by a.attnum)
               filter (where a.attgenerated = '' and a.atttypid <> 'xid8'::regtype) as columns
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
       and c.relpersistence = 'p'
     group by c.relname order by c.relname"""
_REFERENCES: Final = """
    select distinct f.relname::text as child, t.relname::text as parent
      from pg_constraint r join pg_class f on f.oid = r.conrelid join pg_class t on t.oid = r.confrelid
     where r.contype = 'f' and r.connamespace = current_schema()::regnamespace and f.oid <> t.oid"""
_PARTITIONS: Final = """
    select c.relname::text as name, p.relname::text as "table", pg_get_expr(c.relpartbound, c.oid) as bounds
      from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
     where p.relname = any($1) and p.relnamespace = current_schema()::regnamespace order by c.relname"""
UNBOUNDED: Final = """
    select set_config(name, '0', false) from pg_settings
     where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout',
                    'idle_in_transaction_session_timeout')"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is kept, without generated columns and transaction ids: a server makes its own."""

    name: str
    columns: tuple[str, ...]

    @property
    def listed(self) -> str:
        return ", ".join(quoted(column) for column in self.columns)


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


async def kept_tables(connection: Any) -> list[Table]:
    """The tables that a backup keeps, each after those that it refers to."""
    rows = await connection.fetch(_TABLES)
    tables = {r["name"]: Table(r["name"], tuple(r["columns"])) for r in rows if r["name"] not in LEFT_OUT}
    parents: dict[str, set[str]] = {name: set() for name in tables}
    for row in await connection.fetch(_REFERENCES):
        if row["child"] in tables and row["parent"] in tables:
            parents[row["child"]].add(row["parent"])
    return [tables[name] for name in load_order(parents)]


def load_order(parents: Mapping[str, set[str]]) -> Sequence[str]:
    """All names, each after its parents; raises ValueError if they refer to one another in a circle."""
    order: list[str] = []
    left = {name: set(of) for name, of in parents.items()}
    while left:
        ready = sorted(name for name, of in left.items() if not of.intersection(left))
        if not ready:
            raise ValueError(f"tables refer to one another in a circle: {', '.join(sorted(left))}")
        order += ready
        for name in ready:
            del left[name]
    return order


async def partitions_of(connection: Any, tables: Sequence[str]) -> tuple[Partition, ...]:
    return tuple(Partition(**dict(row)) for row in await connection.fetch(_PARTITIONS, list(tables)))


class UnsuitableSchemaError(Exception):
    """The database cannot be backed up, or restored to; the message has the reason and what to do."""


@asynccontextmanager
async def dedicated(dsn: str) -> AsyncIterator[Any]:
    """A dedicated connection without time limits, terminated at the end."""
    connection = await asyncpg.connect(dsn, timeout=ACQUIRE_TIMEOUT_S, statement_cache_size=0)
    try:
        await connection.execute(UNBOUNDED)
        yield connection
    finally:
        connection.terminate()
