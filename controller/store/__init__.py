"""PostgreSQL: private tables, one consistent read per kind, guarded writes, migrations, embedded server."""
