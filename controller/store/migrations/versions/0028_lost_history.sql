-- A ledger that lost commits, after a restore or a failover: agents have seen more than it holds.

-- (hub, restore) when that was noticed last; null: never. (workers) When agents had told what runs, or had the time to;
-- before, the leader places nothing.
alter table lease
    add column cut_at     timestamptz,
    add column settled_at timestamptz
--;;
-- (hub) when its agent last made the ledger go above what it has seen. No agent can do so at will.
alter table workers add column above_at timestamptz
--;;
-- (hub) the highest epoch of it that an agent has seen. The next start is above it.
alter table instances add column seen_epoch integer not null default 0
