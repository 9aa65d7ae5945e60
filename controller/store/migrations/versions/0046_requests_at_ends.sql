-- A client that repeats a request that crashes its engine would crash all replicas, one after the other.
-- No foreign key: what is known of an end must outlive its instance.
create unlogged table requests_at_ends (    -- (gateway) all of it; minutes old, so that a backup need not keep it
    instance_id text not null,
    epoch       integer not null,
    request     bytea not null check (octet_length(request) = 32),  -- a digest of key, deployment and body
    at          timestamptz not null,       -- when its connection ended before its answer did
    crashed     boolean,                                            -- whether the engine crashed; null: unknown
    primary key (instance_id, epoch, request)
)
--;;
create index requests_at_ends_at on requests_at_ends (at)
