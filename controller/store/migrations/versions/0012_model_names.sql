-- (api) Every name under which requests ask for a live deployment: its own, its aliases, its adapters.
create table model_names (
    name           text primary key,
    deployment_uid uuid not null references deployments (uid) on delete cascade
)
--;;
create index model_names_deployment on model_names (deployment_uid)
--;;
insert into model_names (name, deployment_uid)
select name, uid from deployments where deleted_at is null
union all
select alias, uid from deployments, jsonb_array_elements_text(coalesce(spec -> 'serving' -> 'aliases', '[]')) alias
 where deleted_at is null
union all
select adapter, uid from deployments, jsonb_object_keys(coalesce(spec -> 'serving' -> 'adapters', '{}')) adapter
 where deleted_at is null
    on conflict do nothing
--;;
drop index deployments_aliases
