-- A standby that is promoted begins a new timeline of PostgreSQL, and may lack the last commits of the one before.

-- The present timeline; null where the server does not tell it, as some hosted ones and every standby.
create function database_timeline() returns integer language plpgsql volatile as $$
begin
    return ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer;
exception when others then
    return null;
end $$
--;;
-- (leader) on which the lease was acquired last; null: not known.
alter table lease add column timeline integer
