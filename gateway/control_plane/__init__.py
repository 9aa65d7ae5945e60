"""Requests that pass on to the controller, and the gateway's own to it."""
