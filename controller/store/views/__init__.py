"""Rows read into what the API returns: a bounded number of queries for each list, all of one moment. Writes nothing.

Every function takes a connection inside one REPEATABLE READ transaction where it reads more than once.
"""
