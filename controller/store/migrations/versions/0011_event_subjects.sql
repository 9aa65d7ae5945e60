-- The same answers as before. PostgreSQL planned the former function anew in each statement that called it; the plans
-- of this one stay with the connection, and each object looks only where its kind stands.
create or replace function event_subjects(objects text[], evidence jsonb) returns jsonb language plpgsql stable as $$
declare
    subjects   jsonb := '[]';
    object     text;
    kind       text;
    subject    text;
    subject_id uuid;
    told       text;
begin
    foreach object in array objects loop
        kind := split_part(object, ':', 1);
        subject := substr(object, strpos(object, ':') + 1);
        subject_id := case when subject ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then subject::uuid end;
        if kind = 'deployment' then
            told := coalesce((select d.name from deployments d where d.uid = subject_id), evidence ->> 'deployment');
        elsif kind = 'worker' then
            told := (select w.name from workers w where w.id = subject_id);
        elsif kind = 'policy' then
            told := coalesce((select p.name from policies p where p.uid = subject_id), evidence ->> 'policy');
        elsif kind = 'key' then
            told := (select k.name from api_keys k where k.id = subject_id);
        else
            told := subject;
        end if;
        if told is null then
            told := (select s ->> 'name'
                       from events e, jsonb_array_elements(e.subjects) s
                      where e.objects @> array[object] and s ->> 'uid' = subject and s ->> 'name' <> ''
                      order by e.id desc limit 1);
        end if;
        subjects := subjects || jsonb_build_object('kind', kind, 'uid', subject, 'name', coalesce(told, ''));
    end loop;
    return subjects;
end
$$
