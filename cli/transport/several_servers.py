"""Several controllers of one database: a request goes to the next one where this one does not answer.

A write that may have reached a controller is not repeated: it may have been done.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from cli.transport.client import NO_HEADERS, Answer, NoAnswerError, Transport

_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT"})
_AWAY: Final = frozenset({502, 503, 504})  # of a gateway or a proxy whose controller does not answer


def several(transports: Sequence[Transport]) -> Transport:
    """One transport for all of them."""
    return transports[0] if len(transports) == 1 else _Several(transports)


def shown(urls: Sequence[str]) -> str:
    """The addresses in messages."""
    return " or ".join(urls)


class _Several:
    """Stays with the one that answers."""

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports = tuple(transports)
        self._at = 0

    async def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """See `Transport`."""
        repeatable = method in _REPEATABLE and "If-Match" not in headers
        for left in reversed(range(len(self._transports))):
            try:
                answer = await self._transports[self._at].exchange(method, target, query, body, headers)
            except NoAnswerError as error:
                self._move_on()
                if not left or (error.sent and not repeatable):
                    raise
            else:
                if not left or answer.status not in _AWAY or not repeatable:
                    return answer
                self._move_on()
        raise AssertionError("the last one returns or raises")

    async def stream(
        self, target: str, query: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer | bytes]:
        """See `Transport`. Once a part has come, the stream ends with its controller."""
        for left in reversed(range(len(self._transports))):
            begun = False
            try:
                async for part in self._transports[self._at].stream(target, query, body):
                    if left and body is None and isinstance(part, Answer) and part.status in _AWAY:
                        break
                    begun = True
                    yield part
                else:
                    return
            except NoAnswerError as error:
                self._move_on()
                if begun or not left or (error.sent and body is not None):
                    raise
            else:
                self._move_on()

    def _move_on(self) -> None:
        self._at = (self._at + 1) % len(self._transports)
