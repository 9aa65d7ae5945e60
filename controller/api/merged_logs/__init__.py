"""Logs of several processes as one stream, by time."""
