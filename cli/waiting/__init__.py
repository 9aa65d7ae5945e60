"""Waits until deployments and workers are in a state."""
