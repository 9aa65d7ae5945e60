"""What a queue needs of a request."""

from typing import Protocol

from gateway.errors import GatewayError


class Queued(Protocol):
    """A request that can wait. Its `arrived` is when it came, in seconds of the queues' clock."""

    key: str
    role: str
    request_id: str
    arrived: float

    def go(self) -> None:
        """A replica may be free: it takes one, or begins to wait again."""

    def fail(self, error: GatewayError) -> None:
        """It ends with this error."""
