"""What cannot be known while the database is away."""


class UnknownWhileAwayError(Exception):
    """The database is away, and what is asked for is not in memory."""
