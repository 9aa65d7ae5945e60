-- Rare reasons are found among millions of events: /events?reason=..., and the newest violation of the ledger.
create index events_reason on events (reason, id)
