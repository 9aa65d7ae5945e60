-- What the scheduler looks at besides, and what it chose.
-- (hub) Adding columns with a constant default rewrites no table.
alter table devices
    add column vendor       text not null default 'nvidia' check (vendor in ('nvidia', 'amd', 'apple')),
    add column reserved_mib bigint not null default 0 check (reserved_mib >= 0), -- kept back by the host's operator
    add column foreign_mib  bigint not null default 0 check (foreign_mib >= 0)   -- in use, and no claim explains it
--;;
-- What no claim explained at this very reading. One reading proves little: it may be older than a claim's release.
alter table device_readings add column foreign_mib bigint not null default 0
--;;
alter table workers add column engines jsonb -- (hub) names of the installed ones; null: not told
--;;
alter table instances
    add column engine text,                                           -- (instances) what `auto` came to
    add column layout jsonb,                                          -- {gpus, workers, tp, pp, dp} as placed
    add column pushed_out_for text                                    -- (instances) who waits for its room
--;;
create index instances_pushed_out on instances (pushed_out_for) where pushed_out_for is not null
