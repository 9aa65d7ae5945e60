-- Not columns of `audit_log`: leaders and writers of versions before know nothing of seals.
create table audit_seals (                    -- (leader) written once; (api) authenticated anew when the key changes
    number   bigint primary key,              -- without gaps
    after_id bigint not null,                 -- `last_id` of the one before
    last_id  bigint not null,
    ids      bigint[] not null,               -- of the entries between both
    newest   timestamptz not null,            -- of their times, at most that of the seal
    digest   bytea not null,                  -- over them and the digest before
    key_id   text not null,                   -- of the secrets' key from which that of `mac` is derived
    mac      bytea not null                   -- over all columns above
)
--;;
create table audit_seals_head (               -- (leader) one row at most; none: nothing is sealed
    id            integer primary key default 1 check (id = 1),
    began_at      timestamptz not null,
    anchor_number bigint not null,            -- seals up to it are gone, and entries up to `anchor_id` may go
    anchor_id     bigint not null,
    anchor_digest bytea not null,
    last_number   bigint not null,
    last_id       bigint not null,
    last_digest   bytea not null,
    key_id        text not null,              -- new seals are made under this one
    mac           bytea not null              -- over all columns above
)
