"""Rows kept in memory and kept fresh, so that no request waits for the database: keys, and the replicas of models.

The API and the gateway share it; the gateway imports nothing else of the controller.
"""
