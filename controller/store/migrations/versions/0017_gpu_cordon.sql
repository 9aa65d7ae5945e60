-- An operator's cordon of one GPU, and how often one dismissed what its driver had reported. The API writes both.

alter table devices
    add column cordoned  boolean not null default false,
    add column dismissed integer not null default 0
