-- (hub) Adding columns with a constant default rewrites no table.
alter table workers
    add column protocol   integer,                     -- of the newest connection; null: none since this column
    add column conditions jsonb not null default '[]'  -- [{type, status, reason, message, since}]
--;;
alter table events
    add column actor      text  not null default '',   -- what did it: 'key:<name>', 'policy:<name>', 'leader', ...
    add column request_id text  not null default '',   -- of the API request that did it
    add column subjects   jsonb not null default '[]'  -- [{kind, name, uid}] of the objects, as they were then
