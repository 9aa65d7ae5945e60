-- A policy's cap ends once demand has asked for more for the policy's whole window, whichever controller leads.
alter table intents
    add column outgrown_since timestamptz  -- (autoscaler) of a policy's cap; null: it asks for no more
--;;
-- What the leader saw of the database's clock: a new leader must not take leapt time for time that was lived through.
create table clock_leaps (                  -- (policies) all of it
    id       bigint generated always as identity primary key,
    seen_at  timestamptz not null,          -- what the clock showed just after the leap
    back     boolean not null,              -- it was set back, so that time comes twice
    leapt_s  double precision not null check (leapt_s > 0)
)
