"""What the store raises beside the driver's own errors."""


class LostGuardError(Exception):
    """A guarded write found the rows changed since they were read. Nothing was written; read again."""
