"""Empties a database between two examples of one test."""

EMPTY = """
    delete from claims; delete from commands; delete from processes; delete from instances; delete from revisions;
    delete from intents; delete from deployments; delete from events; delete from worker_liveness;
    delete from devices; delete from workers; delete from policies"""
