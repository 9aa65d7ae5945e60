"""Rows that are kept fresh in memory, so that no request waits for the database: keys, and the replicas of models.

The API and the gateway share it; the gateway imports nothing else of the controller.
"""
