-- Places in models' queues that gateways hold (`domain/queue_places.py`). A gateway without a row holds none.
create unlogged table queue_places (                                   -- (gateway) all of it
    deployment_uid uuid not null,
    gateway_id     uuid not null,
    held           integer not null,
    need           integer not null,                                   -- requests that wait, with a place or for one
    at             timestamptz not null,                               -- of its last ask
    primary key (deployment_uid, gateway_id)
) with (fillfactor = 50)
--;;
create index queue_places_gateway on queue_places (gateway_id)
