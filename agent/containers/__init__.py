"""Runs model servers in containers of the host's Docker engine."""
