alter table api_keys
    add column used_at    timestamptz,                                 -- noted once a minute at most
    add column rotated_to uuid references api_keys (id)
