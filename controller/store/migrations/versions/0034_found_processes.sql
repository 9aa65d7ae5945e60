-- What runs and is not in a ledger that lost commits: agents tell it, and the leader takes back what is wanted.

-- Seals the receipts that agents keep beside what they start. 244 random bits; a backup keeps it.
alter table lease
    add column receipt_key bytea not null
        default decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
--;;
create table found_processes (                                         -- (hub) written; (leader) deleted once decided
    instance_id text not null,
    epoch       integer not null,
    rank        integer not null,
    worker_id   uuid not null references workers (id),
    session     bigint not null,                                       -- of the connection that told it last
    receipt     jsonb not null,                                        -- the ledger's own word, as it was sealed
    report      jsonb not null,                                        -- the agent's newest
    found_at    timestamptz not null default now(),
    primary key (instance_id, epoch, rank)
)
--;;
create index found_processes_worker on found_processes (worker_id)
