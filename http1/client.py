"""Client connections that a server cannot flood with heads, and bounded reads of its answers.

aiohttp reads and parses whatever arrives before an answer's head is final, without a bound. A server that sends
`100 Continue` for ever would keep the loop of a daemon busy, and with it everything else that runs there.
"""

import functools
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

MOST_HEADS: Final = 32  # of one answer: informational ones and the final one


class _BoundedHeads(ResponseHandler):
    """Reads the answers on one connection, and ends it after too many heads."""

    heads = 0

    def set_response_params(self, **params: Any) -> None:
        """Called before each request."""
        self.heads = 0
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called with each head that was read, and the body to come."""
        self.heads += 1
        if self.heads <= MOST_HEADS:
            super().feed_data(data, size)
        elif self.heads == MOST_HEADS + 1:
            self.set_exception(aiohttp.ServerDisconnectedError(f"more than {MOST_HEADS} heads in one answer"))
            if self.transport is not None:
                self.transport.abort()


class BoundedConnector(aiohttp.TCPConnector):
    """A connector whose connections take at most `MOST_HEADS` heads for each request."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        bounded: Any = functools.partial(_BoundedHeads, loop=self._loop)
        self._factory = bounded


async def read_at_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, which may come in several parts, cut after that many bytes.

    Raises:
        aiohttp.ClientError: it broke off.
        TimeoutError: the request's deadline has passed.
    """
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) >= most_bytes:
            break
    return bytes(body[:most_bytes])
