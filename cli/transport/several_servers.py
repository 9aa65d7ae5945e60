"""Several controllers of one database: a request goes to the next one where this one does not answer.

A write that may have reached a controller is not repeated: it may have been done.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cli.transport.answers import NO_HEADERS, Answer, NoAnswerError
from cli.transport.one_server import Server

_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT"})
_AWAY: Final = frozenset({502, 503, 504})  # of a gateway or a proxy whose controller does not answer


class Servers:
    """Stays with the server that answers. Its methods are those of `Server`."""

    def __init__(self, servers: "Sequence[Server]") -> None:
        self._servers = tuple(servers)
        self._at = 0

    def close(self) -> None:
        """Closes them."""
        for server in self._servers:
            server.close()

    def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        until: float = float("inf"),
    ) -> Answer:
        """See `Server.exchange`."""
        repeatable = method in _REPEATABLE and "If-Match" not in headers
        for left in reversed(range(len(self._servers))):
            try:
                answer = self._servers[self._at].exchange(method, target, query, body, headers, until=until)
            except NoAnswerError as error:
                self._move_on()
                if not left or (error.sent and not repeatable):
                    raise
            else:
                if not left or answer.status not in _AWAY or not repeatable:
                    return answer
                self._move_on()
        raise AssertionError("the last one returns or raises")

    def stream(
        self, target: str, query: Mapping[str, str], body: bytes | None = None, *, silence_s: float | None = None
    ) -> Iterator[Answer | bytes]:
        """See `Server.stream`. Once a part has come, the stream ends with its controller."""
        for left in reversed(range(len(self._servers))):
            started = False
            try:
                for part in self._servers[self._at].stream(target, query, body, silence_s=silence_s):
                    if left and body is None and isinstance(part, Answer) and part.status in _AWAY:
                        break
                    started = True
                    yield part
                else:
                    return
            except NoAnswerError as error:
                self._move_on()
                if started or not left or (error.sent and body is not None):
                    raise
            else:
                self._move_on()

    def _move_on(self) -> None:
        self._at = (self._at + 1) % len(self._servers)
