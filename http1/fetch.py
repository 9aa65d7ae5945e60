"""One small request and its answer, on a connection of its own. What a server sends is read in bounds."""

import asyncio
from collections.abc import Awaitable, Callable

from http1.bodies import keep
from http1.protocol.client import ClientConnection
from http1.protocol.connecting import ConnectError
from http1.protocol.heads import Fields, ResponseHead, request_bytes


class FetchError(Exception):
    """There is no answer.

    Attributes:
        errno: the operating system's error, where no connection could be made; None: another reason.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class _Answer:
    """Receives one answer; the future gets why it failed, or an empty text."""

    def __init__(self, most_bytes: int) -> None:
        self.head: ResponseHead | None = None
        self.parts: list[bytes] = []
        self.left = most_bytes
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def response_head(self, head: ResponseHead) -> None:
        self.head = head

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:  # noqa: ARG002 - they are passed on nowhere
        keep(self.parts, data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.response_failed("")

    def response_end(self) -> None:
        self.response_failed("")

    def response_failed(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)

    def request_writable(self, *, ready: bool) -> None:
        pass


async def fetch(
    connect: Callable[[], Awaitable[ClientConnection]],
    method: bytes,
    target: bytes,
    fields: Fields,
    body: bytes = b"",
    *,
    limit_s: float,
    most_bytes: int,
) -> tuple[ResponseHead, bytes]:
    """Head and body of the answer; the body is cut after `most_bytes`. No redirect is followed.

    Args:
        connect: opens the connection, which is closed afterwards.
        method: the request's method, such as b"GET".
        target: path and query.
        fields: the request's fields, without those that frame the body.
        body: the request's body.
        limit_s: seconds for all of it.
        most_bytes: the bound on the answer's body.

    Raises:
        FetchError: there is no answer within the limit.
    """
    answer = _Answer(most_bytes)
    framing = [(b"connection", b"close")]
    if body:
        framing.append((b"content-length", b"%d" % len(body)))
    connection = None
    try:
        async with asyncio.timeout(limit_s):
            connection = await connect()
            connection.ask(request_bytes(method, target, [*fields, *framing]), [body] if body else [], answer)
            why = await answer.over
    except ConnectError as error:
        raise FetchError(str(error), error.errno) from error
    except TimeoutError as error:
        raise FetchError("no answer in time") from error
    finally:
        if connection is not None:
            connection.abort()
    if why or answer.head is None:
        raise FetchError(why)
    return answer.head, b"".join(answer.parts)
