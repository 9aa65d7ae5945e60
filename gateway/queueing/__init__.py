"""Requests that wait for a replica, and the leases of their places."""
