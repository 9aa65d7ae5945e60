-- What lacked a secret starts as soon as that has changed.
alter table secrets
    add column changed_at timestamptz not null default now()  -- (api) its value or its scope
--;;
-- Held with the claims of the leader's host, so that two gangs never meet at one port.
alter table claims
    add column rendezvous_port integer                        -- (instances) of a gang; null: none, or unknown
--;;
create unique index claims_rendezvous on claims (device, rendezvous_port) where rendezvous_port is not null
