"""Spawn, adopt, probe, drain, kill and log the model servers."""
