"""Contracts of Gpuward: manifests, objects of the API, messages between agent and controller. No I/O, no ORM."""
