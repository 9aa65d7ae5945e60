-- The victims' rows are gone before the last of them has ended, so the preemptor's row keeps the place.
alter table instances
    add column promised jsonb  -- (instances) names of workers and UUIDs of GPUs that victims leave, until it is placed
--;;
-- Such a refusal says nothing of the next start: what it needs is checked again.
alter table commands
    add column unmet text      -- (hub) code of what the start needed and did not find, where no agent was asked
