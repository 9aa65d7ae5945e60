alter table join_tokens
    add column uses integer not null default 0,
    add column max_uses integer not null default 1
--;;
update join_tokens set uses = 1 where used_at is not null
--;;
alter table join_tokens
    add constraint join_tokens_uses check (uses between 0 and max_uses),
    add constraint join_tokens_max_uses check (max_uses between 1 and 1000)
