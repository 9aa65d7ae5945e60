-- A drain waits for replacements, and for tasks that never restart. One that began before stops all at once.
alter table workers
    add column drain_until          timestamptz,                    -- (api) replacements start first until then
    add column drain_restarts_tasks boolean not null default false  -- (api) tasks are stopped then
--;;
alter table relocations
    -- `drain`: its worker is drained; `restart`: a user restarts it. Their replacements have no planned place.
    add column purpose text not null default 'plan' check (purpose in ('plan', 'drain', 'restart'))
