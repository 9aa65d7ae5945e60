"""Errors that the store raises beside the driver's own."""


class LostGuardError(Exception):
    """A guarded write found rows changed since they were read. Nothing was written; read again."""
