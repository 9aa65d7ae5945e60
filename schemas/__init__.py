"""Contracts: manifests, objects of the API, and the messages between agent and controller. No I/O, no ORM."""
