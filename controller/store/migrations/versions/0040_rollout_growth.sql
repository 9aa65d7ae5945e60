-- Replicas by which a deployment has grown, and which find no place, do not hold up a rollout.
alter table rollouts
    add column kept integer not null default 0 -- (leader) replicas that it keeps up on full hosts; 0: not known yet
--;;
-- Not a column of `deployments`: versions before read whole rows of it by statements that a new column ends.
create table placed_before (
    deployment_uid uuid primary key references deployments (uid) on delete cascade,
    replicas integer not null -- (api) with a place when the newest revision became that
)
--;;
-- A strategy that was stored as `pack` need not have been written: what is missing is the default.
update deployments set spec = spec #- '{placement,strategy}' where spec #>> '{placement,strategy}' = 'pack'
--;;
update revisions set spec = spec #- '{placement,strategy}' where spec #>> '{placement,strategy}' = 'pack'
