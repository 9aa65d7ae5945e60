"""Starts, adopts, probes, drains, kills and logs the model servers."""
