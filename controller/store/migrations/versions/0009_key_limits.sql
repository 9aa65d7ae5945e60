-- Limits of keys, their shares at gateways, and what keys used. One writer per column: (api), (gateway), (leader).

-- (api) null: no limit; no globs: all models. `changed` rises with each change, so that gateways see it.
alter table api_keys
    add column models         text[] not null default '{}',
    add column rpm            integer check (rpm > 0),
    add column tpm            integer check (tpm > 0),
    add column tokens_per_day bigint check (tokens_per_day > 0),
    add column parallel       integer check (parallel > 0),
    add column expires_at     timestamptz,
    add column changed        integer not null default 0
--;;
-- Every gateway that shares in limits. Silent ones go, and what they held goes back (`domain/key_shares.py`).
create table share_members (                                           -- (gateway) all of it
    gateway        uuid primary key,
    fraction       double precision not null,                          -- of each refill, while it is out of touch
    seen_at        timestamptz not null,
    in_touch_since timestamptz not null                                -- without a gap
) with (fillfactor = 50)
--;;
-- What is left of each limit, beside what gateways hold.
create table key_buckets (                                             -- (gateway) all of it
    key_id   uuid not null references api_keys (id) on delete cascade,
    kind     text not null,                                            -- requests | tokens | day | parallel
    capacity bigint not null,
    level    double precision not null,                                -- negative: owed
    day      date not null,                                            -- of UTC, for which a level per day counts
    at       timestamptz not null,                                     -- when the level was right
    primary key (key_id, kind)
) with (fillfactor = 50)
--;;
create table key_holdings (                                            -- (gateway) all of it
    gateway uuid not null references share_members (gateway) on delete cascade,
    key_id  uuid not null references api_keys (id) on delete cascade,
    kind    text not null,
    held    double precision not null,
    spent   double precision not null,                                 -- totals of its last ask
    minted  double precision not null,
    want    bigint not null,
    primary key (key_id, kind, gateway)
) with (fillfactor = 50)
--;;
create index key_holdings_gateway on key_holdings (gateway)
--;;
-- The last batch of usage that was taken from each gateway, so that none counts twice.
create table usage_flushes (                                           -- (gateway); old ones go by (leader)
    gateway uuid primary key,
    number  bigint not null,
    at      timestamptz not null default now()
) with (fillfactor = 50)
--;;
-- What keys used: by minute, later by hour and by day.
create table key_usage (                                               -- (gateway) minutes, (leader) hours and days
    span_s            integer not null check (span_s in (60, 3600, 86400)),
    at                timestamptz not null,                            -- when the span begins
    key_id            uuid not null references api_keys (id) on delete cascade,
    model             text not null,                                   -- the deployment's name
    endpoint          text not null,
    requests          bigint not null,
    errors            bigint not null,
    prompt_tokens     bigint not null,
    cached_tokens     bigint not null,                                 -- a part of the prompt's
    completion_tokens bigint not null,
    estimated         bigint not null,                                 -- requests whose tokens are estimated
    in_flight_s       double precision not null,
    first_tokens      bigint not null,                                 -- requests with a first token
    first_token_s     double precision not null,                       -- until then, all together
    primary key (span_s, at, key_id, model, endpoint)
)
--;;
create index key_usage_at on key_usage (at)
