-- The two characters are those of controller/domain/quoted_lines.py. What follows the way in which a process has ended
-- is what its agent said of it.
create function pg_temp.quoted(message text) returns text language sql immutable as $$
    select regexp_replace(
        message,
        '((exited with code [0-9]+|ended unexpectedly, with exit code 0|was killed by signal [0-9]+'
        '|exited, exit code unknown|could not be started): )(.*?)((; restarts in [0-9.e+-]+ s)?)$',
        '\1' || U&'\FDD0' || '\3' || U&'\FDD1' || '\4')
$$
--;;
update processes set message = U&'\FDD0' || message || U&'\FDD1'
 where state = 'exited' and message <> '' and coalesce(reason, 'exit') in ('exit', 'gone', 'spawn_failed')
   and message not like 'oom_killed: %'
--;;
update instances set message = pg_temp.quoted(message) where message like '%: %'
--;;
update deployments set message = pg_temp.quoted(message) where message like '%: %'
--;;
update rollouts set message = pg_temp.quoted(message) where message like '%: %'
--;;
update events set message = pg_temp.quoted(message)
 where reason in ('backoff', 'failed', 'ended', 'succeeded') and message like '%: %'
