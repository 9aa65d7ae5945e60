"""Observe, decide, apply: one file per kind."""
