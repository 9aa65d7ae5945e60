alter table secrets
    add column changed_at timestamptz not null default now()  -- (api) its value or its scope
