"""Snapshot and now in, plan out; one file per kind. Pure."""
