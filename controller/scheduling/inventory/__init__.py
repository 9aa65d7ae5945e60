"""Workers, devices, claims and demand as arrays."""
