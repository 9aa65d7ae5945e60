"""Decisions: a snapshot and the time go in, effects come out. Pure; one module or folder per kind."""
