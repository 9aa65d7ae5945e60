"""Engines' logs: their lines with times, over rotations, without secrets."""
