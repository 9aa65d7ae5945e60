-- MIG slices with their parent, and what agents read of GPUs for operators.

alter table devices add column parent text                             -- (hub) the GPU of which it is a MIG slice
--;;
create table device_details (                                          -- (hub) written a few times a minute
    device  text primary key references devices (uuid) on delete cascade,
    details jsonb not null,                                            -- schemas.wire.GpuDetails without what is null
    read_at timestamptz not null
) with (fillfactor = 50)
