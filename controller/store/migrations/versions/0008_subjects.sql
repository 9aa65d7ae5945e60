-- An event's objects with the names that they have now. Of an object whose row is gone: the name that the event itself
-- tells, or that its last event told. Looked up once, when the event is written, since rows and names come and go.
create function event_subjects(objects text[], evidence jsonb) returns jsonb language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_object('kind', o.kind, 'uid', o.uid, 'name', coalesce(
               case o.kind
                    when 'deployment' then coalesce(
                        (select d.name from deployments d where d.uid = o.id), evidence ->> 'deployment')
                    when 'worker' then (select w.name from workers w where w.id = o.id)
                    when 'policy' then coalesce(
                        (select p.name from policies p where p.uid = o.id), evidence ->> 'policy')
                    when 'key' then (select k.name from api_keys k where k.id = o.id)
                    else o.uid
               end,
               (select s ->> 'name'
                  from events e, jsonb_array_elements(e.subjects) s
                 where e.objects @> array[o.object] and s ->> 'uid' = o.uid and s ->> 'name' <> ''
                 order by e.id desc limit 1),
               '')) order by o.n), '[]')
      from (select object, n, kind, uid,
                   case when uid ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then uid::uuid end as id
              from (select object, n, split_part(object, ':', 1) as kind, substr(object, strpos(object, ':') + 1) as uid
                      from unnest(objects) with ordinality as u (object, n)) u) o
$$
--;;
-- (hub) The newest connections, and until when nothing is placed here because they contradict each other.
alter table workers
    add column recent_hellos     jsonb not null default '[]', -- [{at, identity, address}], the newest last
    add column quarantined_until timestamptz,
    add column quarantine_reason text not null default ''     -- two_identities | reconnects_too_often
