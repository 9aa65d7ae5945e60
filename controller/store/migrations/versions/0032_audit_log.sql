create table audit_log (                                               -- (api, hub) appended; (leader) deleted when old
    id         bigint generated always as identity primary key,
    at         timestamptz not null,
    actor      text not null,                                          -- key:NAME, agent:NAME; empty: unknown
    key_id     text not null default '',
    address    text not null default '',                               -- of the client
    action     text not null,                                          -- method and route, or secret.read
    object     text not null default '',                               -- the path below /api/v1, or secret/NAME
    outcome    text not null check (outcome in ('done', 'refused', 'failed', 'cut')),
    status     integer not null default 0,                             -- of HTTP; 0: no request
    code       text not null default '',                               -- of the error
    request_id text not null default '',
    left_out   integer not null default 0                              -- refused attempts before it that have no row
)
--;;
create index audit_log_at on audit_log (at)
--;;
create index audit_log_actor on audit_log (actor, id)
