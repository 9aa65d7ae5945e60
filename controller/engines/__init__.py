"""Engines: their platforms, memory needs, command lines and probes. Pure."""
