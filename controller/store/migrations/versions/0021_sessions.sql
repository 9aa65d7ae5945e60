-- Logins of browsers. A session is valid as long as its key is, and ends at the latest at `expires_at`.

create table browser_sessions (
    hash bytea primary key,  -- (api) of the cookie, in a domain of its own: no API key can have it
    key_id uuid not null references api_keys (id) on delete cascade,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null
)
--;;
create index browser_sessions_by_key on browser_sessions (key_id, created_at)
