-- Demand, wakes and the autoscaler. One writer per column: (gateway), (hub), (api), (autoscaler).
-- Unlogged tables hold what their writers tell again within seconds; after a crash of the database they are empty.

-- (autoscaler) its floor, which is also its cap: the number that it wants. 0 for all other sources
alter table intents add column min_replicas integer not null default 0 check (min_replicas >= 0)
--;;
create index deployments_aliases on deployments using gin ((spec -> 'serving' -> 'aliases')) where deleted_at is null
--;;
-- (instances) how long the last start took, from its placement to its first good probe
alter table deployments add column load_s real
--;;
-- Every gateway process. One that starts again under its name takes the place of a predecessor that no longer reports.
create unlogged table gateways (                                       -- (gateway) all of it
    id      uuid primary key,
    name    text not null,
    beat    bigint not null default 0,                                 -- rises with each report
    seen_at timestamptz not null default now()
) with (fillfactor = 50)
--;;
create index gateways_name on gateways (name)
--;;
-- What one gateway has for one deployment, told once a second while it changes.
create unlogged table gateway_demand (                                 -- (gateway) all of it
    gateway_id     uuid not null references gateways (id) on delete cascade,
    deployment_uid uuid not null,
    mean           real not null,                                      -- in flight and waiting, over its last second
    in_flight      integer not null,
    waiting        integer not null,
    arrived        bigint not null,                                    -- requests since the gateway's start
    primary key (gateway_id, deployment_uid)
) with (fillfactor = 50)
--;;
create index gateway_demand_deployment on gateway_demand (deployment_uid)
--;;
-- Requests that wait for a sleeping deployment, one row for each gateway, and an operator's `wake --for`.
create table wakes (                                                   -- (gateway) or, where source is 'user', (api)
    deployment_uid uuid not null references deployments (uid) on delete cascade,
    source         text not null,                                      -- gateway:ID | user
    request_id     text not null default '',                           -- of the first request
    created_at     timestamptz not null default now(),
    expires_at     timestamptz not null,
    primary key (deployment_uid, source)
) with (fillfactor = 70)
--;;
-- What engines say of their own queues and caches.
create unlogged table engine_loads (                                   -- (hub) all of it
    instance_id text not null,
    epoch       integer not null,
    queued      integer,                                               -- null: unknown
    kv_use      real,                                                  -- 0 to 1; null: unknown
    at          timestamptz not null default clock_timestamp(),
    primary key (instance_id)
) with (fillfactor = 50)
--;;
-- The autoscaler's present number with its evidence, also where it only shows it.
create unlogged table scaling_status (                                 -- (autoscaler) all of it
    deployment_uid uuid primary key,
    number         integer not null,
    reason         text not null,
    message        text not null,
    dry_run        boolean not null,
    silent         text[] not null default '{}',                       -- names of gateways that do not report
    evidence       jsonb not null,
    since          timestamptz not null default clock_timestamp(),     -- of this number
    at             timestamptz not null default clock_timestamp()
) with (fillfactor = 50)
