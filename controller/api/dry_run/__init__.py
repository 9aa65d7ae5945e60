"""Dry runs on the scheduler's own code: plan, explain and defrag."""
