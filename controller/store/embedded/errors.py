"""What the embedded PostgreSQL raises."""


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot do what was asked; the message names the cause and the fix."""
