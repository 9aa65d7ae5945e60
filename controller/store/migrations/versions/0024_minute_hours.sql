-- The minutes of one series of `sample_minutes` and one hour, as columns in the order of time: whole numbers of minutes
-- since 1970 (int4), and the figures (float4). Weeks of many GPUs are read in a tenth of the time.
create table minute_hours (                                           -- (history) all of it
    hour        timestamptz not null,
    device      text not null,
    instance_id text not null,
    minute      bytea not null,
    mean        bytea not null,
    max         bytea not null,
    covered_s   bytea not null,
    primary key (device, instance_id, hour)
) partition by range (hour)
--;;
-- Hours whose minutes are all in `minute_hours`, or (`up_to`) those of the GPUs up to this one. Other hours have none there.
create table packed_hours (                                           -- (history) all of it
    hour  timestamptz primary key,
    up_to text                                                        -- null: of all GPUs
)
--;;
create function packed_minutes(series_device text, series_instance text, begin timestamptz)
    returns table (minute bytea, mean bytea, max bytea, covered_s bytea) language sql stable as $$
    select string_agg(int4send((date_part('epoch', m.minute) / 60)::int), '' order by m.minute),
           string_agg(float4send(m.mean), '' order by m.minute), string_agg(float4send(m.max), '' order by m.minute),
           string_agg(float4send(m.covered_s), '' order by m.minute)
      from sample_minutes m
     where m.device = series_device and m.instance_id = series_instance
       and m.minute >= begin and m.minute < begin + interval '1 hour'
    having count(*) > 0
$$
--;;
-- A minute that changes later, such as by late samples, changes in the packed hour with the same statement.
create function repack_hours() returns trigger language plpgsql as $$
declare
    stale record;
begin
    for stale in
        select distinct c.device, c.instance_id, p.hour
          from changed c
          join packed_hours p on p.hour = date_bin('1 hour', c.minute, 'epoch')
         where p.up_to is null or c.device <= p.up_to
         order by 1, 2, 3
    loop
        delete from minute_hours h
         where h.device = stale.device and h.instance_id = stale.instance_id and h.hour = stale.hour;
        insert into minute_hours
        select stale.hour, stale.device, stale.instance_id, f.*
          from packed_minutes(stale.device, stale.instance_id, stale.hour) f;
    end loop;
    return null;
end
$$
--;;
create trigger sample_minutes_inserted after insert on sample_minutes referencing new table as changed
    for each statement execute function repack_hours()
--;;
create trigger sample_minutes_updated after update on sample_minutes referencing new table as changed
    for each statement execute function repack_hours()
--;;
create trigger sample_minutes_deleted after delete on sample_minutes referencing old table as changed
    for each statement execute function repack_hours()
