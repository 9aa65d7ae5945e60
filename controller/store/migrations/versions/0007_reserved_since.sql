-- (instances) Since when capacity is reserved for it that servers hold; counts only while not before phase_since.
alter table instances add column reserved_since timestamptz
