-- The ledger and everything around it. Statements are separated by lines that hold only "--;;".
-- One writer per column: (api), (hub), (instances), (workers) name the part of the controller that writes it.

create table lease (
    id          smallint primary key check (id = 1),
    term        bigint not null,
    holder      text not null,
    acquired_at timestamptz not null,
    renewed_at  timestamptz not null,
    ttl_s       double precision not null
)
--;;
insert into lease values (1, 0, '', '-infinity', '-infinity', 10)
--;;
create table deployments (
    uid                 uuid primary key,
    name                text not null,                                -- (api)
    generation          bigint not null check (generation > 0),       -- (api) rises with every changed spec
    revision            bigint not null check (revision > 0),         -- (api) generation of the newest revision
    spec                jsonb not null,                               -- (api)
    created_at          timestamptz not null default now(),           -- (api)
    deleted_at          timestamptz,                                  -- (api) the tombstone
    phase               text not null default 'pending',              -- (instances) and all below
    phase_since         timestamptz not null default now(),
    reason              text not null default '',
    message             text not null default '',
    ready               integer not null default 0,
    observed_generation bigint not null default 0,
    conditions          jsonb not null default '[]',
    version             bigint not null default 0                     -- rises with every step of its reconciler
)
--;;
create unique index deployments_live_name on deployments (name) where deleted_at is null
--;;
create table revisions (
    deployment_uid uuid not null references deployments (uid) on delete cascade,
    generation     bigint not null,
    spec           jsonb not null,                                    -- (api) immutable
    input_hash     text not null,                                     -- (api) of what the analysis reads
    need           jsonb,                                             -- (instances) result of the analysis
    need_error     jsonb,                                             -- (instances) or why there is none
    created_at     timestamptz not null default now(),
    primary key (deployment_uid, generation)
)
--;;
create table intents (
    deployment_uid uuid not null references deployments (uid) on delete cascade,
    source         text not null check (source in ('user', 'policy', 'autoscaler')),
    max_replicas   integer not null check (max_replicas >= 0),
    reason         text not null default '',
    message        text not null default '',
    created_at     timestamptz not null default now(),
    primary key (deployment_uid, source)
)
--;;
create table instances (                                              -- (instances) all of it
    id             text primary key,
    deployment_uid uuid not null,
    revision       bigint not null,
    phase          text not null,
    phase_since    timestamptz not null default now(),
    reason         text not null default '',
    message        text not null default '',
    epoch          integer not null default 0 check (epoch >= 0),
    restarts       integer not null default 0,
    failures       integer not null default 0,                        -- in a row on the present worker
    not_before     timestamptz,                                       -- end of the back-off
    stop_reason    text,                                              -- set when it is to go, with the phase stopping
    replaces       text,                                              -- the instance for which this is the substitute
    explain        jsonb,
    created_at     timestamptz not null default now(),
    foreign key (deployment_uid, revision) references revisions (deployment_uid, generation)
)
--;;
create index instances_deployment on instances (deployment_uid)
--;;
create index instances_waiting on instances (phase) where phase in ('pending', 'analyzing')
--;;
create table workers (
    id              uuid primary key,
    name            text not null,                                    -- (api) at the join
    credential_hash bytea not null,                                   -- (api) at the join
    proxy_secret    text not null,                                    -- (api) at the join
    created_at      timestamptz not null default now(),
    deleted_at      timestamptz,                                      -- (api)
    cordoned        boolean not null default false,                   -- (api)
    draining        boolean not null default false,                   -- (api)
    confirmed_dead  timestamptz,                                      -- (api) the operator's word
    phase           text not null default 'joining',                  -- (workers)
    phase_since     timestamptz not null default now(),               -- (workers)
    reason          text not null default '',                         -- (workers)
    fence_until     timestamptz,                                      -- (workers) after it, nothing of it can still run
    session         bigint not null default 0,                        -- (hub) raised at each hello; and all below
    boot_id         text not null default '',
    agent_version   text not null default '',
    hostname        text not null default '',
    os              text not null default '',
    arch            text not null default '',
    driver          text,
    simulated       boolean not null default false,
    labels          jsonb not null default '{}',
    proxy_address   text not null default '',                         -- HOST:PORT
    gpus_known      boolean not null default false,                   -- false: the GPUs could not be read
    reported_at     timestamptz,                                      -- last full report
    highest_term    bigint not null default 0,                        -- that the agent has seen at its last hello
    changed         xid8 not null default pg_current_xact_id()
)
--;;
create unique index workers_live_name on workers (name) where deleted_at is null
--;;
create unique index workers_credential on workers (credential_hash)
--;;
create index workers_changed on workers (changed)
--;;
create table worker_liveness (                                        -- (hub) flushed about once a second
    worker_id uuid primary key references workers (id) on delete cascade,
    session   bigint not null,
    connected boolean not null,
    last_seen timestamptz not null,
    clean     boolean not null default false                          -- it said goodbye before it went
) with (fillfactor = 50)
--;;
create table devices (
    uuid               text primary key,                              -- GPU-..., MIG-..., or host-<worker id>
    worker_id          uuid not null references workers (id),         -- (hub) and all below but the counters
    kind               text not null check (kind in ('gpu', 'host')),
    index              integer not null,
    model              text not null default '',
    compute_capability text,
    memory_mib         bigint not null check (memory_mib >= 0),       -- what can be claimed
    reported_mib       bigint not null,                               -- what was last reported; less makes it unhealthy
    cpu_milli          bigint not null default 0 check (cpu_milli >= 0),
    health             text not null default 'ok' check (health in ('ok', 'unhealthy', 'unknown')),
    health_reason      text not null default '',
    mig_mode           boolean not null default false,
    present            boolean not null default true,
    claimed_mib        bigint not null default 0,                     -- kept by the triggers on claims
    claimed_cpu_milli  bigint not null default 0,
    claims             integer not null default 0,
    exclusive_claims   integer not null default 0,
    changed            xid8 not null default pg_current_xact_id(),
    constraint devices_memory_not_overclaimed check (claimed_mib between 0 and memory_mib),
    constraint devices_cpu_not_overclaimed check (claimed_cpu_milli between 0 and cpu_milli),
    constraint devices_exclusive_is_alone check (exclusive_claims = 0 or claims = 1),
    constraint devices_counters_sane check (claims >= 0 and exclusive_claims between 0 and claims)
) with (fillfactor = 70)
--;;
create index devices_worker on devices (worker_id)
--;;
create index devices_changed on devices (changed)
--;;
create table device_readings (                                        -- (hub) flushed set-based
    device      text primary key references devices (uuid) on delete cascade,
    used_mib    bigint,
    utilization real,                                                 -- percent; null is unknown
    read_at     timestamptz not null
) with (fillfactor = 50)
--;;
create table claims (                                                 -- (instances)
    device      text not null references devices (uuid),
    instance_id text not null references instances (id),
    epoch       integer not null,
    rank        integer not null default 0,
    memory_mib  bigint not null check (memory_mib >= 0),
    cpu_milli   bigint not null default 0 check (cpu_milli >= 0),
    exclusive   boolean not null default false,
    position    integer not null default 0,                           -- order in which the process sees its GPUs
    created_at  timestamptz not null default now(),
    primary key (device, instance_id, epoch)
)
--;;
create index claims_instance on claims (instance_id)
--;;
create table processes (                                              -- (hub)
    instance_id text not null references instances (id) on delete cascade,
    epoch       integer not null,
    rank        integer not null,
    worker_id   uuid not null references workers (id),
    state       text not null check (state in ('starting', 'running', 'unhealthy', 'stopping', 'exited')),
    reason      text,
    exit_code   integer,
    message     text not null default '',
    pid         integer,
    ready       boolean not null default false,
    seq         bigint not null,
    session     bigint not null,
    reported_at timestamptz not null default now(),
    primary key (instance_id, epoch, rank)
) with (fillfactor = 70)
--;;
create index processes_worker on processes (worker_id)
--;;
create table commands (
    id          bigint generated always as identity primary key,      -- (instances) and all down to created_at
    worker_id   uuid not null references workers (id),
    instance_id text not null references instances (id) on delete cascade,
    epoch       integer not null,
    rank        integer not null,
    verb        text not null check (verb in ('start', 'stop')),
    payload     jsonb not null,
    created_at  timestamptz not null default now(),
    state       text not null default 'open' check (state in ('open', 'accepted', 'refused', 'withdrawn')), -- (hub), but withdrawn: (instances)
    sent_at     timestamptz,                                          -- (hub) and all below
    answered_at timestamptz,
    code        text not null default '',
    message     text not null default '',
    unique (instance_id, epoch, rank, verb)
)
--;;
create index commands_open on commands (worker_id, id) where state = 'open'
--;;
create table events (
    id       bigint generated always as identity primary key,
    at       timestamptz not null default now(),
    reason   text not null,
    message  text not null,
    evidence jsonb not null default '{}',
    objects  text[] not null                                          -- 'deployment:<uid>', 'instance:<id>', 'worker:<id>', 'gpu:<uuid>'
)
--;;
create index events_objects on events using gin (objects)
--;;
create index events_at on events (at)
--;;
create table api_keys (
    id         uuid primary key,
    name       text not null,
    role       text not null check (role in ('admin', 'operator', 'viewer', 'inference')),
    hash       bytea not null unique,
    created_at timestamptz not null default now(),
    revoked_at timestamptz
)
--;;
create table join_tokens (
    id         uuid primary key,
    hash       bytea not null unique,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    used_at    timestamptz,
    used_by    text,
    revoked_at timestamptz
)
--;;
create table secrets (
    name       text primary key,
    value      text not null,
    updated_at timestamptz not null default now()
)
--;;
create function stamp_changed() returns trigger language plpgsql as $$
begin
    new.changed := pg_current_xact_id();
    return new;
end $$
--;;
create trigger devices_stamp before update on devices for each row execute function stamp_changed()
--;;
create trigger workers_stamp before update on workers for each row execute function stamp_changed()
--;;
-- The claim guard. Statement-level, so that a batch costs one pass; rows locked in uuid order, so that two batches
-- never wait for each other in a circle; NO KEY UPDATE, so that it agrees with the foreign key's KEY SHARE.
create function claims_inserted() returns trigger language plpgsql as $$
declare
    bad text;
begin
    perform 1 from devices where uuid in (select device from delta) order by uuid for no key update;
    select string_agg(c.device, ', ') into bad
      from delta c join devices d on d.uuid = c.device
     where (c.exclusive and d.kind = 'gpu' and c.memory_mib <> d.memory_mib)
        or (c.exclusive and d.kind = 'host') or d.mig_mode;
    if bad is not null then
        raise exception 'claims refused on %: an exclusive claim takes a whole GPU, a GPU in MIG mode none', bad
            using errcode = 'check_violation', constraint = 'claims_fit_their_device';
    end if;
    update devices d
       set claimed_mib = d.claimed_mib + x.mib, claimed_cpu_milli = d.claimed_cpu_milli + x.cpu,
           claims = d.claims + x.n, exclusive_claims = d.exclusive_claims + x.excl
      from (select device, sum(memory_mib) mib, sum(cpu_milli) cpu, count(*) n, count(*) filter (where exclusive) excl
              from delta group by device) x
     where d.uuid = x.device;
    return null;
end $$
--;;
create function claims_deleted() returns trigger language plpgsql as $$
begin
    perform 1 from devices where uuid in (select device from delta) order by uuid for no key update;
    update devices d
       set claimed_mib = d.claimed_mib - x.mib, claimed_cpu_milli = d.claimed_cpu_milli - x.cpu,
           claims = d.claims - x.n, exclusive_claims = d.exclusive_claims - x.excl
      from (select device, sum(memory_mib) mib, sum(cpu_milli) cpu, count(*) n, count(*) filter (where exclusive) excl
              from delta group by device) x
     where d.uuid = x.device;
    return null;
end $$
--;;
create function claims_refused() returns trigger language plpgsql as $$
begin
    raise exception '% of claims is refused: a claim is made and released, never changed', tg_op
        using errcode = 'restrict_violation';
end $$
--;;
create trigger claims_after_insert after insert on claims referencing new table as delta
    for each statement execute function claims_inserted()
--;;
create trigger claims_after_delete after delete on claims referencing old table as delta
    for each statement execute function claims_deleted()
--;;
create trigger claims_no_update before update on claims for each statement execute function claims_refused()
--;;
create trigger claims_no_truncate before truncate on claims for each statement execute function claims_refused()
--;;
create trigger devices_no_truncate before truncate on devices for each statement execute function claims_refused()
