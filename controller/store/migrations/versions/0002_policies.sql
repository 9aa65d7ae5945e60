-- Utilization policies, samples and history. Statements are separated by lines that hold only "--;;".
-- One writer per column: (api), (hub), (instances), (policies) name the part of the controller that writes it.

create table policies (                                               -- (api) all of it
    uid        uuid primary key,
    name       text not null unique,
    generation bigint not null check (generation > 0),
    spec       jsonb not null,
    is_default boolean not null default false,
    created_at timestamptz not null default now()
)
--;;
create unique index policies_one_default on policies (is_default) where is_default
--;;
-- (instances) since when the present epoch serves; null until then. Phases come and go while an engine falters, this stays.
alter table instances add column running_since timestamptz
--;;
update instances set running_since = phase_since where phase in ('running', 'unhealthy')
--;;
-- (policies) the instances that shall go first where the limit takes some away
alter table intents add column instances text[] not null default '{}'
--;;
-- A row for each GPU and sampling period. Its time is the database's: of receipt, less the sample's age by the agent's
-- monotonic clock. `processes` is a list of [instance, epoch, rank, mean, max, requests]; null is unknown.
create table samples (                                                -- (hub) all of it
    at        timestamptz not null,
    device    text not null,
    worker_id uuid not null,
    seq       bigint not null,
    period_s  real not null,
    mean      real not null,
    max       real not null,
    used_mib  bigint,
    processes jsonb not null default '[]',
    tx        xid8 not null default pg_current_xact_id()
) partition by range (at)
--;;
create index samples_device on samples (device, at)
--;;
create index samples_tx on samples (tx)
--;;
-- Up to which sequence a worker's samples are kept: what it sends again is known by it.
create table sample_progress (                                        -- (hub) all of it
    worker_id uuid primary key references workers (id) on delete cascade,
    boot_id   text not null,
    seq       bigint not null
) with (fillfactor = 50)
--;;
create table policy_verdicts (                                        -- (policies) all of it
    instance_id       text primary key references instances (id) on delete cascade,
    epoch             integer not null,
    deployment_uid    uuid not null,
    policy            text not null,                                  -- its name, or '' where it is inline
    policy_uid        uuid,                                           -- null: inline
    policy_generation bigint not null,                                -- of the policy, or of the deployment it is in
    action            text not null,
    dry_run           boolean not null,
    verdict           text not null check (verdict in ('idle', 'busy', 'unknown')),
    reason            text not null default '',
    message           text not null default '',
    since             timestamptz not null default now(),             -- of this verdict
    low_since         timestamptz,                                    -- all known samples since then are low
    due_at            timestamptz,                                    -- when it will be idle if it goes on so
    evidence          jsonb not null default '{}',
    acted             text not null default ''                        -- what was done in this episode of idleness
) with (fillfactor = 70)
--;;
create index policy_verdicts_policy on policy_verdicts (policy_uid)
--;;
create index policy_verdicts_deployment on policy_verdicts (deployment_uid)
--;;
create table policy_actions (                                         -- (policies) all of it
    id                bigint generated always as identity primary key,
    at                timestamptz not null default now(),
    policy            text not null,
    policy_uid        uuid,
    policy_generation bigint not null,
    action            text not null check (action in ('stop', 'scale_down', 'notify')),
    dry_run           boolean not null,
    deployment_uid    uuid not null,
    deployment        text not null,
    instances         text[] not null,
    gpus              double precision not null,                      -- GPUs freed: 1 for a whole one, a share for a share
    evidence          jsonb not null,
    ended_at          timestamptz                                     -- since when they are wanted again, or nobody's
)
--;;
create index policy_actions_open on policy_actions (deployment_uid) where ended_at is null
--;;
create index policy_actions_at on policy_actions (at)
--;;
create index policy_actions_ended on policy_actions (ended_at)
--;;
-- What actions that were forgotten came to, so that no counter ever falls.
create table policy_totals (                                          -- (policies)
    id               bigint generated always as identity primary key,
    policy           text not null,
    policy_uid       uuid,
    actions          bigint not null,
    would_have_acted bigint not null,
    gpu_s            double precision not null,                       -- GPU seconds freed
    unique nulls not distinct (policy_uid, policy)
)
--;;
create table webhook_deliveries (                                     -- (policies) all of it
    id           uuid primary key,
    action_id    bigint references policy_actions (id) on delete cascade,
    url          text not null,
    secret       text not null,                                       -- name of the stored secret that signs
    payload      text not null,
    created_at   timestamptz not null default now(),
    attempts     integer not null default 0,
    not_before   timestamptz not null default now(),
    finished_at  timestamptz,
    delivered    boolean not null default false,
    error        text not null default ''
)
--;;
create index webhook_deliveries_open on webhook_deliveries (not_before) where finished_at is null
--;;
-- One minute of one GPU: of all on it together where instance_id is '', and of each instance that shares it. An instance
-- that has it to itself needs no rows of its own.
create table sample_minutes (                                         -- (history) all of it
    minute         timestamptz not null,
    device         text not null,
    instance_id    text not null default '',
    deployment_uid uuid,
    mean           real not null,
    max            real not null,
    samples        integer not null,
    covered_s      real not null,
    used_mib       bigint,
    primary key (device, instance_id, minute)                           -- read by GPU, over a time
) partition by range (minute)
--;;
-- Samples of transactions before `horizon` are in the minutes. `at`: when that horizon was taken.
create table rollup_progress (                                        -- (history) one row
    id      smallint primary key default 1 check (id = 1),
    horizon xid8 not null,
    at      timestamptz not null
)
--;;
insert into rollup_progress (horizon, at) values ('0', now())
--;;
create table claim_spans (                                            -- written by the trigger alone
    id             bigint generated always as identity primary key,
    device         text not null,
    worker_id      uuid not null,
    instance_id    text not null,
    epoch          integer not null,
    deployment_uid uuid not null,
    deployment     text not null,
    memory_mib     bigint not null,
    device_mib     bigint not null,
    exclusive      boolean not null,
    running_since  timestamptz,                                       -- of that epoch; null where it never ran
    began_at       timestamptz not null,
    ended_at       timestamptz not null
)
--;;
create index claim_spans_ended on claim_spans (ended_at)
--;;
-- A restart in place deletes and inserts in one transaction, whose time ends the one span and begins the next: no time
-- is counted twice. A transaction may be older than the claim that it deletes.
create function claims_span_kept() returns trigger language plpgsql as $$
begin
    insert into claim_spans (device, worker_id, instance_id, epoch, deployment_uid, deployment, memory_mib, device_mib,
                             exclusive, running_since, began_at, ended_at)
    select c.device, d.worker_id, c.instance_id, c.epoch, p.uid, p.name, c.memory_mib, d.memory_mib,
           c.exclusive, case when i.epoch = c.epoch then i.running_since end, c.created_at, greatest(now(), c.created_at)
      from delta c
      join devices d on d.uuid = c.device and d.kind = 'gpu'
      join instances i on i.id = c.instance_id
      join deployments p on p.uid = i.deployment_uid;
    return null;
end $$
--;;
create trigger claims_span after delete on claims referencing old table as delta
    for each statement execute function claims_span_kept()
