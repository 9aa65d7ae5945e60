"""Workers, their devices and heartbeats."""
