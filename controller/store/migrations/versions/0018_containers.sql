-- What workers can run besides processes of their hosts, and the bytes that the name of an image stood for.

alter table workers
    add column runtimes jsonb not null default '[]'  -- (hub) [{name, usable, gpus, reason, version}]
--;;
alter table revisions
    add column image_digest text  -- (hub) what its first container ran; later ones run the same. null: none has yet
--;;
alter table processes
    add column image_digest text  -- (hub) null: no container, or an image of no registry
