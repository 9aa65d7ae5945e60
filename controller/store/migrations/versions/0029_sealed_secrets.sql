alter table secrets
    alter column value drop not null,                                  -- null: `sealed` has it
    add column sealed      bytea,                                      -- nonce and AES-GCM; bound to the name
    add column key_id      text not null default '',                   -- of the key that opens it; the database has no key
    add column deployments text[] not null default '{}',               -- globs of names; none: all
    add column admins_only boolean not null default false,
    add column created_at  timestamptz not null default clock_timestamp(),
    add column used_at     timestamptz,
    add constraint secrets_sealed_or_plain check ((value is null) <> (sealed is null)),
    add constraint secrets_key_named check ((sealed is null) = (key_id = ''))
--;;
update secrets set created_at = updated_at
