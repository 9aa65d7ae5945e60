-- The result of the last audit, one row for each invariant. Every controller reads it, for readiness and metrics.
create table audit_results (                                           -- (housekeeping), and a repair
    invariant  text primary key,
    violations integer not null check (violations >= 0),
    at         timestamptz not null
) with (fillfactor = 50)
