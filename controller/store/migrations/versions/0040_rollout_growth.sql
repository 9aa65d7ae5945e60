-- Replicas by which a deployment has grown, and which find no place, do not hold up a rollout.
alter table rollouts
    add column kept integer not null default 0 -- (leader) replicas that it keeps up on full hosts; 0: not known yet
--;;
alter table deployments
    add column placed_before integer -- (api) replicas with a place when `revision` became the newest; null: unknown
--;;
-- A strategy that was stored as `pack` need not have been written: what is missing is the default.
update deployments set spec = spec #- '{placement,strategy}' where spec #>> '{placement,strategy}' = 'pack'
--;;
update revisions set spec = spec #- '{placement,strategy}' where spec #>> '{placement,strategy}' = 'pack'
