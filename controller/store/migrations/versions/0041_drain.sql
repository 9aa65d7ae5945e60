-- A drain waits for replacements, and for tasks that never restart. One that began before stops all at once.
alter table workers
    add column drain_until          timestamptz,                    -- (api) replacements start first until then
    add column drain_restarts_tasks boolean not null default false  -- (api) tasks are stopped then
--;;
alter table relocations
    add column drain boolean not null default false -- its worker is drained: its replacement has no planned place
