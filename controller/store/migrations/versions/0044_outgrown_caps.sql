-- A policy's cap ends once demand has asked for more for the policy's whole window, whichever controller leads.
-- Not a column of `intents`: versions before read whole rows of it by statements that a new column ends.
create table outgrown_caps (                -- (autoscaler) policies' caps beyond which demand asks for replicas
    deployment_uid uuid primary key,
    source         text not null default 'policy' check (source = 'policy'),
    since          timestamptz not null default now(),
    foreign key (deployment_uid, source) references intents (deployment_uid, source) on delete cascade
)
--;;
-- What the leader saw of the database's clock: a new leader must not take leapt time for time that was lived through.
create table clock_leaps (                  -- (policies) all of it
    id       bigint generated always as identity primary key,
    seen_at  timestamptz not null,          -- what the clock showed just after the leap
    back     boolean not null,              -- it was set back, so that time comes twice
    leapt_s  double precision not null check (leapt_s > 0)
)
