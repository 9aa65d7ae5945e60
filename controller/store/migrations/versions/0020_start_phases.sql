-- The name under which an instance's time counts: its phase, or what it fetches while it starts. None once it runs.
create function start_phase(phase text, reason text) returns text language sql immutable as $$
    select case when phase in ('analyzing', 'pending', 'scheduled') then phase
                when phase = 'starting' then case when reason in ('fetching', 'pulling') then reason else phase end end
$$
--;;
alter table instances
    add column start_phases      jsonb not null default '{}',  -- (instances) seconds of each phase of this start so far
    add column start_phase_since timestamptz                   -- (instances) begin of the one that it is in
--;;
-- Whatever moves an instance, its time is kept. A start that follows an end, or one that is placed again, begins anew.
create function keep_start_phases() returns trigger language plpgsql as $$
declare
    before text := start_phase(old.phase, old.reason);
    after  text := start_phase(new.phase, new.reason);
    spent  float8;
begin
    if before is not distinct from after then
        return new;
    end if;
    if after is null then
        new.start_phase_since := null;
    else
        new.start_phase_since := clock_timestamp();
    end if;
    if before is null or (after = 'pending' and before <> 'analyzing') then
        if old.phase <> 'unreachable' or old.epoch <> new.epoch or after = 'pending' then
            new.start_phases := '{}';  -- else: an agent has returned, and its start goes on
        end if;
        return new;
    end if;
    spent := extract(epoch from clock_timestamp() - coalesce(old.start_phase_since, old.phase_since))
             + coalesce((old.start_phases ->> before)::float8, 0);
    new.start_phases := old.start_phases || jsonb_build_object(before, round(spent::numeric, 3));
    return new;
end
$$
--;;
create trigger instances_start_phases before update of phase, reason on instances
    for each row execute function keep_start_phases()
--;;
-- The last events of what is gone: they tell its uid by its name.
create index events_gone on events ((subjects -> 0 ->> 'name')) where reason in ('finished', 'policy_deleted')
