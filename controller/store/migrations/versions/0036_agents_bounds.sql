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
-- What an agent was told of terms and sessions is proven with the key of receipts, so after a loss of commits it can
-- name what it has seen, and nothing else. Agents of before this version have no proof: their word counts until they
-- have shown one.
alter table workers add column unproven boolean not null default false -- (hub) false at the first proof
--;;
update workers set unproven = true
--;;
alter table workers add column next_proxy_secret text                  -- (hub) with the next credential, until it is used
