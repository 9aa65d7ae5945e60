-- The victims' rows are gone before the last of them has ended, so the preemptor's row keeps the place.
alter table instances
    add column promised jsonb  -- (instances) names of workers and UUIDs of GPUs that victims leave, until it is placed
