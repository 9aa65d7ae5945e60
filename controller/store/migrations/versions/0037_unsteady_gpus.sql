-- A GPU that is lost and comes back again and again is kept longer from placement after each loss.
alter table devices
    add column losses         integer not null default 0,     -- (hub) in a row, each within a day of the one before
    add column lost           boolean not null default false, -- (hub) and not back since
    add column unsteady_until timestamptz,                    -- (hub) once it is back it is not used before
    add column dismissals     integer not null default 0      -- (hub) value of `dismissed` when that was judged
--;;
-- What is lost already counts once it is back and lost again.
update devices
   set lost = split_part(health_reason, ':', 1) in ('missing', 'gpu_lost', 'xid_79'), dismissals = dismissed
 where kind = 'gpu' and (dismissed > 0 or split_part(health_reason, ':', 1) in ('missing', 'gpu_lost', 'xid_79'))
