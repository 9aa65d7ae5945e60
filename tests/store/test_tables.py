"""The SQLModel classes agree with the migrated schema, so neither can change without the other."""

from sqlalchemy.dialects import postgresql
from sqlmodel import SQLModel

from controller.store.access import orm_rows
from controller.store.core.database import Database
from support.database.ledger import rows

_COLUMNS = """
    select c.relname as table, a.attname as column, format_type(a.atttypid, a.atttypmod) as type,
           not a.attnotnull as nullable, a.atthasdef or a.attidentity <> '' as has_default,
           coalesce(a.attnum = any(k.conkey), false) as key
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      left join pg_constraint k on k.conrelid = c.oid and k.contype = 'p'
     where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = 'public'::regnamespace"""


async def test_tables_mirror_the_migration(migrated: Database) -> None:
    in_classes = {
        (table.name, column.name): (
            column.type.compile(postgresql.dialect()).lower(),
            column.nullable,
            column.server_default is not None,
            column.primary_key,
        )
        for table in SQLModel.metadata.tables.values()
        for column in table.columns
    }
    names = {table for table, _ in in_classes}
    in_database = {
        (row["table"], row["column"]): (row["type"], row["nullable"], row["has_default"], row["key"])
        for row in await rows(migrated, _COLUMNS)
        if row["table"] in names
    }
    assert names == {row.__tablename__ for row in (orm_rows.KeyRow, orm_rows.TokenRow)}
    assert in_classes == in_database
