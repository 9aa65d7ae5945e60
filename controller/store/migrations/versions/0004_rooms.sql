-- (api) For whom room is made by moves, and where: {instance: [names of workers, UUIDs of GPUs]}. It is theirs meanwhile.
alter table relocations add column rooms jsonb not null default '{}'
