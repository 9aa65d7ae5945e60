"""The SQLModel classes say what the migration says: nobody can change one without the other."""

from sqlalchemy.dialects import postgresql
from sqlmodel import SQLModel

from controller.store.core import policy_tables, tables
from controller.store.core.database import Database
from support.ledger import rows

_NOT_OURS = {"alembic_version"}
_COLUMNS = """
    select c.relname as table, a.attname as column, format_type(a.atttypid, a.atttypmod) as type,
           not a.attnotnull as nullable, a.atthasdef or a.attidentity <> '' as filled,
           coalesce(a.attnum = any(k.conkey), false) as key
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      left join pg_constraint k on k.conrelid = c.oid and k.contype = 'p'
     where c.relkind in ('r', 'p') and not c.relispartition and c.relnamespace = 'public'::regnamespace"""
_SPELLINGS = {"FLOAT(53)": "double precision", "REAL": "real", "BYTEA": "bytea", "TEXT[]": "text[]"}


async def test_tables_mirror_the_migration(migrated: Database) -> None:
    in_database = {
        (row["table"], row["column"]): (row["type"], row["nullable"], row["filled"], row["key"])
        for row in await rows(migrated, _COLUMNS)
        if row["table"] not in _NOT_OURS
    }
    dialect = postgresql.dialect()
    in_classes = {}
    for table in SQLModel.metadata.tables.values():
        for column in table.columns:
            spelled = column.type.compile(dialect)
            in_classes[table.name, column.name] = (
                _SPELLINGS.get(spelled, spelled.lower()),
                column.nullable,
                column.server_default is not None,
                column.primary_key,
            )
    assert in_classes.keys() == in_database.keys()
    assert {k: (v, in_database[k]) for k, v in in_classes.items() if v != in_database[k]} == {}
    assert tables.DeploymentRow.__tablename__ == "deployments"
    assert policy_tables.PolicyRow.__tablename__ == "policies"
