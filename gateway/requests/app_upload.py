"""The body of a request for a path of a custom server's own, below `/apps/NAME`: any method, and WebSockets.

The gateway reads its head alone: body and answer pass as they are. A WebSocket is a request in flight until one side
ends it. It ends with its key, and when nothing has passed for `serving.silence_timeout`.
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Final

from controller.live.endpoints import Endpoint
from gateway.bodies.long_bodies import LONG_BYTES
from gateway.bodies.parameters import Parameters
from gateway.errors import GatewayError
from gateway.requests.heads import forwarded_to_app, id_for_engine, returned_by_app
from gateway.requests.states import LONG_READ_LIMIT_S, RECEIVING
from gateway.requests.upload import Upload
from http1.protocol.client import ClientConnection
from http1.protocol.heads import ResponseHead, lines_of

if TYPE_CHECKING:
    from gateway.requests.request import Request

PATH: Final = "/apps"  # the path of all of them in usage and metrics


def for_programs() -> GatewayError:
    """401: also for a browser with a session, whose cookies come with whatever page sends a request."""
    return GatewayError(
        401,
        "unauthenticated",
        "paths below /apps are for programs: cookies do not count here; send Authorization: Bearer KEY",
        headers={"WWW-Authenticate": "Bearer"},
    )


def app_upload(name: str, target: bytes) -> "Callable[[Request], AppUpload]":
    """Makes the body of a request to a deployment, with the target that its server gets."""
    return lambda request: AppUpload(request, name, target)


class AppUpload(Upload):
    """A body that the gateway does not read. `target`: the request's target, as the server gets it."""

    __slots__ = ("_content", "_digest", "_name", "_target")
    reads_events: ClassVar[bool] = False

    def __init__(self, request: "Request", name: str, target: bytes) -> None:
        super().__init__(request)
        self._name = name
        self._target = target
        self._content: tuple[bytes, ...] = ()
        self._digest = b""

    def read(self) -> None:
        self._content, self.parts = tuple(self.parts), []
        request = self.request
        if self.size > LONG_BYTES:
            request.deadline = request.loop.time() + LONG_READ_LIMIT_S
            request.work(self._digest_long)
        else:
            self._digest = self._digested()
            self._uploaded()

    async def _digest_long(self) -> None:
        self._digest = await asyncio.to_thread(self._digested)  # would hold the loop for 30 ms
        if self.request.state is RECEIVING:
            self._uploaded()

    def _uploaded(self) -> None:
        self.request.uploaded(Parameters(self._name), 0)  # nothing is known of tokens but what the server reports

    def _digested(self) -> bytes:
        """Of all that the server may act on: most requests below `/apps` have no body."""
        digest = sha256(self.request.head.method + b" " + self._target + b"\0")
        for piece in self._content:
            digest.update(piece)
        return digest.digest()

    def send(self, endpoint: Endpoint, server: ClientConnection) -> None:
        """Sends the request, or the handshake of a WebSocket."""
        request = self.request
        engines_id = id_for_engine(request.head, request.request_id)
        size = sum(map(len, self._content))
        head = forwarded_to_app(request.head, endpoint, engines_id, size, self._target)
        request.exchange.send(server, head, self._content)

    def returned_lines(self, head: ResponseHead) -> bytes:
        return lines_of(returned_by_app(head, self._name))

    def digest(self) -> bytes:
        return self._digest

    def release(self) -> None:
        self._content = ()
        self.drop()
