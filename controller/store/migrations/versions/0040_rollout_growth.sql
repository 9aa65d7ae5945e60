-- Replicas by which a deployment has grown, and which find no place, do not hold up a rollout.
alter table rollouts
    add column kept integer not null default 0 -- (leader) replicas that it keeps up on full hosts; 0: not known yet
--;;
alter table deployments
    add column placed_before integer -- (api) replicas with a place when `revision` became the newest; null: unknown
