"""Limits of keys at this gateway, and the shares of them that the store leases."""
