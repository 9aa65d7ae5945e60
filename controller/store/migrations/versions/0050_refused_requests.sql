-- Requests that gateways answered themselves since a limit of the key or a full queue refused them. (gateway), (leader)
alter table key_usage add column refused bigint not null default 0
