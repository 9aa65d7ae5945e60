"""Frozen snapshots and phase tables. Pure: no I/O, no clock."""
