"""One small request of the gateway's own to the controller, and its whole answer."""

import asyncio
from typing import Final

from gateway.control_plane.reverse_proxy import Controller
from http1.bodies import keep
from http1.protocol.client import ConnectError
from http1.protocol.heads import Fields, ResponseHead, request_bytes

_MOST_BYTES: Final = 64 * 2**20


class FetchError(Exception):
    """The controller gave no answer."""


class _Collected:
    """Collects one answer."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.pieces: list[bytes] = []
        self.size = 0
        # To why it failed; empty: it did not.
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def response_head(self, head: ResponseHead) -> None:
        self.head = head

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:  # noqa: ARG002 - they are passed on nowhere
        self.size += len(data)
        if self.size <= _MOST_BYTES:
            keep(self.pieces, data)

    def response_end(self) -> None:
        self._end("" if self.size <= _MOST_BYTES else "the answer is too large")

    def response_failed(self, why: str) -> None:
        self._end(why)

    def request_writable(self, *, ready: bool) -> None:
        pass

    def _end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)


async def fetch(controller: Controller, path: bytes, fields: Fields, limit_s: float) -> tuple[ResponseHead, bytes]:
    """Head and body of the controller's answer to a GET.

    Raises:
        FetchError: there is none within the limit.
    """
    collected = _Collected()
    connection, asked = None, controller.address
    try:
        async with asyncio.timeout(limit_s):
            connection = await controller.connect()
            asked = controller.address
            sent = [(b"host", b"controller"), *fields, *controller.credential(), (b"connection", b"close")]
            connection.begin(request_bytes(b"GET", path, sent), collected, chunked=False)
            connection.end()
            why = await collected.over
    except (ConnectError, TimeoutError) as error:
        controller.silent(asked)
        raise FetchError(str(error) or "no answer in time") from error
    finally:
        if connection is not None:
            connection.abort()
    if why or collected.head is None:
        raise FetchError(why)
    return collected.head, b"".join(collected.pieces)
