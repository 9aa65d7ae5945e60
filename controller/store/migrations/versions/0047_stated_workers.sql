-- Not columns of `workers` and `join_tokens`: versions before read whole rows of them.
create table token_terms (                     -- (api) what a join token is for; none: any name, no labels
    token_id    uuid primary key references join_tokens (id) on delete cascade,
    worker_name text,                          -- null: any
    labels      jsonb not null default '{}',   -- of the workers that join with it
    networks    text[] not null default '{}'   -- within which they may advertise another address than their own
)
--;;
create table stated_workers (                  -- (api, join) none: a version before has let it join
    worker_id uuid primary key references workers (id) on delete cascade,
    labels    jsonb not null default '{}',     -- those with trusted keys count
    networks  text[]                           -- null: it joined before these were asked for, and may name any
)
--;;
-- Which keys are trusted is a setting: all values stay, and those count whose key is trusted.
insert into stated_workers (worker_id, labels)
select w.id, coalesce((select jsonb_object_agg(l.key, l.value) from jsonb_each(w.labels) l
                        where not starts_with(l.key, 'gpuward/')), '{}')
  from workers w where w.deleted_at is null
