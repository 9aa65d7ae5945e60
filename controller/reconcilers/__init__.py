"""Observe, decide, apply: a file per kind."""
