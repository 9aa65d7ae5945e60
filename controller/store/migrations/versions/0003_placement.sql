-- What the scheduler looks at besides, and what it chose.
-- (hub) Adding columns with a constant default rewrites no table.
alter table devices
    add column vendor       text not null default 'nvidia' check (vendor in ('nvidia', 'amd', 'apple')),
    add column reserved_mib bigint not null default 0 check (reserved_mib >= 0), -- kept back by the host's operator
    add column foreign_mib  bigint not null default 0 check (foreign_mib >= 0)   -- in use, and no claim explains it
--;;
-- What no claim explained at this very reading. One reading proves little: it may be older than a claim's release.
alter table device_readings add column foreign_mib bigint not null default 0
--;;
alter table workers add column engines jsonb -- (hub) names of the installed ones; null: not told
--;;
alter table instances
    add column engine text,                                           -- (instances) what `auto` came to
    add column layout jsonb,                                          -- {gpus, workers, tp, pp, dp} as placed
    add column pushed_out_for text                                    -- (instances) who waits for its room
--;;
create index instances_pushed_out on instances (pushed_out_for) where pushed_out_for is not null
--;;
-- Instances that are to move so that others fit. (api) inserts; the rest is the leader's.
create table relocations (
    id              bigint generated always as identity primary key,
    deployment_uid  uuid not null references deployments (uid) on delete cascade,
    instance_id     text not null,
    epoch           int not null,             -- in which it runs; another one is not moved
    workers         text[] not null,          -- where to: names,
    gpus            text[] not null,          -- and UUIDs; none where it is on none
    demand          text not null default '', -- for whom room is made
    state           text not null default 'waiting' check (state in ('waiting', 'moving', 'moved', 'abandoned')),
    copy_id         text,                     -- the instance that takes its place
    message         text not null default '',
    created_at      timestamptz not null default clock_timestamp(),
    started_at      timestamptz,
    ended_at        timestamptz
)
--;;
create unique index relocations_open on relocations (instance_id) where state in ('waiting', 'moving')
--;;
create index relocations_moving on relocations (deployment_uid) where state = 'moving'
--;;
create index relocations_copy on relocations (copy_id) where state = 'moving'
