"""What cannot be known while the database is away, and watchers that end."""


class UnknownWhileAwayError(Exception):
    """The database is away, and what is asked for is not in memory."""


class WatchEndedError(Exception):
    """A watcher gets no more: a read failed, or it fell too far behind. It can watch again, with a new snapshot."""
