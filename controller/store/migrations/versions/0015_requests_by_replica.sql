-- Requests of each replica: what its agent has seen of all gateways together, and what each gateway has there.

-- (hub) the most requests at once over its last sampling period, and when that was said; `at` is of queue and cache
alter table engine_loads
    add column requests    integer,                                    -- null: unknown
    add column requests_at timestamptz not null default '-infinity'
--;;
-- (gateway) requests at each replica, by its name
alter table gateway_demand add column replicas jsonb not null default '{}'
