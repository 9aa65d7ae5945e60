"""Limits of keys: pure, but for the task that asks the store for shares."""
