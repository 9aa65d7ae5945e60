"""What a server's connection calls for each request."""

from typing import Final, Protocol


class Handler(Protocol):
    """Handles one request; the connection calls it.

    Where it has taken all of the body from the head, `body` and `end` are not called.
    """

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client."""

    def end(self) -> None:
        """The body is complete; not called where the head states that there is none."""

    def gone(self) -> None:
        """The client is gone before its answer was complete, or the connection was cut; at most once, and the last."""

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer; true at first."""


class _Dropped:
    """Handles a request that was answered at once: what is left of it is dropped."""

    def body(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass

    def gone(self) -> None:
        pass

    def writable(self, *, ready: bool) -> None:
        pass


DROPPED: Final = _Dropped()
