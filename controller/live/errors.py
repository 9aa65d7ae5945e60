"""Errors of reads from memory, and of watchers."""


class UnknownWhileAwayError(Exception):
    """The database is away, and the requested object is not in memory."""


class WatchEndedError(Exception):
    """The watch ended: a read failed, or the watcher fell too far behind. It can watch again, with a new snapshot."""
