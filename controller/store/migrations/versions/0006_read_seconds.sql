-- What samples speak for. Statements are separated by lines that hold only "--;;".

-- (hub) seconds that were really read, up to `at`; null: an agent that does not say, whose samples speak for their period.
-- From now on a process in `processes` ends with the number of requests that came.
alter table samples add column read_s real
--;;
-- (hub) the last sampling period that could not be taken, and why
alter table workers add column samples_dropped_at timestamptz
--;;
alter table workers add column samples_dropped text not null default ''
