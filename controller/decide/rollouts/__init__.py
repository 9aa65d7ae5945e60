"""Rollouts: `judge` says how far one is, `plan` how many instances of which revision there may be."""
