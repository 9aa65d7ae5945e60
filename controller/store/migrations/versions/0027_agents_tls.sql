-- What an agent's proxy shows to gateways, and the credential that is about to replace the worker's.

alter table workers
    add column proxy_certificate    text not null default '',          -- (hub) SHA-256 in hex; '': it speaks no TLS
    add column next_credential_hash bytea,                             -- (hub) handed over, and not used yet
    add column credential_since     timestamptz not null default now() -- (hub) of `credential_hash`
--;;
create unique index workers_next_credential on workers (next_credential_hash) where next_credential_hash is not null
