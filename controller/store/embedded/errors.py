"""The error of the embedded PostgreSQL."""


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot be used; the message has the cause and what to do."""
