"""Objects as the API returns them, read from rows: a bounded number of queries for each list. Reads only.

A function with several reads needs a connection inside one REPEATABLE READ transaction, so that all see one snapshot.
"""
