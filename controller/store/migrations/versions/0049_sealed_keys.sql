-- A value is sealed where its plain column is null: what knows of no seals fails then, instead of using another value.
alter table workers alter column proxy_secret drop not null
--;;
alter table lease alter column receipt_key drop not null
--;;
create table sealing (                        -- (leader) one row, and (api) at a rotation
    id             smallint primary key check (id = 1),
    receipt_key    bytea,                     -- that of `lease`, under the secrets' key
    receipt_key_id text not null default '',
    proxy_key_id   text not null default ''   -- new proxy secrets are sealed under this one; empty: not sealed yet
)
--;;
insert into sealing (id) values (1)
--;;
-- Under a key that is derived from the secrets' key. Both columns of a value are null, or none.
create table sealed_proxy_secrets (           -- one writer for each column of `workers` that it replaces, and (leader)
    worker_id   uuid primary key references workers (id) on delete cascade,
    sealed      bytea,
    key_id      text,
    next_sealed bytea,
    next_key_id text
)
--;;
-- Workers whose agents reported receipts while no key of the controller opened that of receipts: they are still to be read.
create table unread_receipts (                -- (hub)
    worker_id uuid primary key references workers (id) on delete cascade
)
--;;
-- Which proxy keys each gateway has. One of a version before has no row: it opens nothing.
create unlogged table gateway_proxy_keys (    -- (gateway)
    gateway_id uuid primary key references gateways (id) on delete cascade,
    key_ids    text[] not null,
    since      timestamptz not null default now()   -- of the gateway's first report
)
