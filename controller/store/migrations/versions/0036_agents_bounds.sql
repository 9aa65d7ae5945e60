-- What an agent's messages alone can cause is written as events within a budget. Lost in a crash: then a new one begins.
create unlogged table event_budgets (                                  -- (hub, reconcilers) all of it
    object text not null,                                              -- worker:<id> or instance:<id>
    reason text not null,
    began_at timestamptz not null,                                     -- of the present hour
    written int not null,                                              -- events of this hour that were written whole
    written_at timestamptz not null,                                   -- of the last one
    held bigint not null,                                              -- since then: events that were not written
    newest jsonb,                                                      -- of these the last
    primary key (object, reason)
)
--;;
-- What an agent was told of terms and sessions is proven with this key, which a backup keeps: so after a loss of commits
-- an agent can name what it has seen, and nothing else. A random UUID has 122 random bits.
alter table lease add column proof_key bytea not null                  -- (migrations) once
    default sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'))
--;;
-- Agents of before this version have no proof. Their word counts until they have been given one.
alter table workers add column unproven boolean not null default false -- (hub) false at the first welcome with a proof
--;;
update workers set unproven = true
--;;
alter table workers add column next_proxy_secret text                  -- (hub) with the next credential, until it is used
