"""Utilization policies: when an instance counts as idle, and what a policy does about it."""
