-- Rollouts with `update: rolling`. One writer per column: (api), (instances), (gateway).

-- (api) which key made it, by which request, and when it became the newest one for the last time
alter table revisions add column actor text not null default '',
                      add column request_id text not null default '',
                      add column applied_at timestamptz
--;;
update revisions set applied_at = created_at
--;;
alter table revisions alter column applied_at set not null, alter column applied_at set default now()
--;;
-- How far a deployment's rollout is; without a row, nothing was ever rolled out.
create table rollouts (
    deployment_uid uuid primary key references deployments (uid) on delete cascade,
    paused         boolean not null default false,                     -- (api)
    asked          integer not null default 0,                         -- (api) rises with each pause and resume
    revision       bigint,                                             -- (instances) from here on; null: nothing yet
    stable         bigint,                                             -- the last one of which all replicas ran
    state          text not null default '',
    attempt        integer not null default 0,                         -- rises with each rollout and each retry
    seen           integer not null default 0,                         -- of `asked`: acted on
    reason         text not null default '',
    message        text not null default '',
    trying_since   timestamptz,
    canary_since   timestamptz,
    progressed     integer not null default 0,
    holds          boolean not null default false,                     -- a missing replica gets the stable revision
    weight         integer check (weight between 0 and 100),           -- percent of requests; null: by least load
    updated        integer not null default 0,
    available      integer not null default 0,
    since          timestamptz not null default clock_timestamp()      -- of this state
) with (fillfactor = 50)
--;;
-- What one gateway has counted of one revision's requests in the present attempt.
create unlogged table gateway_outcomes (                               -- (gateway) all of it
    gateway_id     uuid not null references gateways (id) on delete cascade,
    deployment_uid uuid not null,
    revision       bigint not null,
    attempt        integer not null,
    requests       bigint not null,
    errors         bigint not null,
    primary key (gateway_id, deployment_uid, revision)
) with (fillfactor = 50)
--;;
create index gateway_outcomes_deployment on gateway_outcomes (deployment_uid)
