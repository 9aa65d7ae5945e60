"""A request for a path of a custom server's own, below `/apps/NAME`: any method, and WebSockets.

Nothing is read of it but its head: its body and its answer pass as they are. A WebSocket is a request in flight until
one side ends it. It ends with its key, and when nothing has passed for `serving.silence_timeout`.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.bodies.long_request import LONG_BYTES
from gateway.bodies.request_body import Asked
from gateway.errors import GatewayError
from gateway.requests.crash_watch import body_digest
from gateway.requests.heads import forwarded_to_app, id_for_engine, returned_by_app
from gateway.requests.holding import Models
from gateway.requests.request import Exchange
from gateway.requests.states import DONE, LONG_READ_LIMIT_S, OVER, SENT
from http1.protocol.client import ClientConnection
from http1.protocol.heads import SWITCHING, RequestHead, ResponseHead, lines_of
from http1.protocol.server_connection import ServerConnection

PATH: Final = "/apps"  # of all of them, in usage and metrics
_KEY_EVERY_S: Final = 1.0  # how long a WebSocket may outlive its key
_NOT_MODIFIED: Final = 304


def for_programs() -> GatewayError:
    """401: also for a browser with a session, whose cookies come with whatever page asks."""
    return GatewayError(
        401,
        "unauthenticated",
        "paths below /apps are for programs: cookies do not count here; send Authorization: Bearer KEY",
        headers={"WWW-Authenticate": "Bearer"},
    )


class AppExchange(Exchange):
    """One request below `/apps`.

    Args:
        models: what all exchanges share.
        head: of the request.
        connection: of the client.
        request_id: of the request.
        admit: called with its key's owner; it refuses by a `GatewayError`.
        name: of the deployment.
        target: of the request, as the server gets it.
    """

    __slots__ = ("_key_at", "_keys", "_name", "_target", "_tunnel")

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
        name: str,
        target: bytes,
    ) -> None:
        super().__init__(models, head, connection, request_id, admit)
        self._path = PATH
        self._name = name
        self._target = target
        self._keys: Sequence[str] = ()
        self._key_at = math.inf  # when the key is checked next
        self._tunnel = False  # the protocol was switched: bytes both ways

    def begin(self, principal: Principal | None, keys: Sequence[str]) -> None:
        """As for every request."""
        self._keys = keys
        super().begin(principal, keys)

    def _unknown(self) -> GatewayError:
        return for_programs()

    def _route(self) -> None:
        pieces, self._pieces = tuple(self._pieces), []
        if self._size > LONG_BYTES:
            self.deadline = self._loop.time() + LONG_READ_LIMIT_S
            self._work(self._digest_long, pieces)
        else:
            self._body = self._digest(pieces)
            self._ask_an_app(pieces)

    async def _digest_long(self, pieces: tuple[bytes, ...]) -> None:
        self._body = await asyncio.to_thread(self._digest, pieces)  # would hold up the loop for 30 ms
        if self._state not in OVER:
            self._ask_an_app(pieces)

    def _ask_an_app(self, pieces: tuple[bytes, ...]) -> None:
        self._asked = Asked(self._name, pieces, (0, 0))
        self._ask_for(self._asked, 0)  # nothing is known of tokens but what the server reports

    def _digest(self, pieces: Sequence[bytes]) -> bytes:
        """Of all that the server may act on: most requests below `/apps` have no body."""
        return body_digest((self._head.method, b" ", self._target, b"\0", *pieces))

    def _count_prompt(self, asked: Asked) -> int:  # noqa: ARG002 - as above
        return 0

    def _send(self, endpoint: Endpoint, upstream: ClientConnection) -> None:
        self._enter(SENT)
        self._sent_at = self._loop.time()
        self.deadline = self._sent_at + endpoint.limits.first_token_timeout
        self._upstream = upstream
        body, head = self._of_asked().body, self._head
        engines_id = id_for_engine(head, self.request_id)
        sent = forwarded_to_app(head, endpoint, engines_id, sum(map(len, body)), self._target)
        if head.upgrade:
            upstream.begin(sent, self, chunked=False, upgrade=True)
            upstream.end()
        else:
            upstream.ask(sent, body, self, head.method == b"HEAD")

    # The client's side

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client."""
        if not self._tunnel:
            super().body(data)
        elif self._upstream is not None:
            self._note_progress()
            self._upstream.send(data)

    def gone(self) -> None:
        """The client is gone, which is how a WebSocket ends."""
        if self._tunnel:
            self._end_tunnel()
        else:
            super().gone()

    # The server's side

    def response_head(self, head: ResponseHead) -> None:
        """An answer begins, or the server switches to a WebSocket."""
        if head.status == SWITCHING:
            self._switch(head)
        else:
            super().response_head(head)

    def _switch(self, head: ResponseHead) -> None:
        endpoint = self._endpoint
        if endpoint is None:
            return
        self._models.routes.table.answered(endpoint)
        self._enter_answer(head)
        self._tunnel = True
        self._key_at = self._loop.time() + _KEY_EVERY_S
        self._note_progress()
        fields = returned_by_app(head, self._name)
        fields += [(b"connection", b"upgrade"), (b"upgrade", self._head.upgrade)]
        self._connection.switch([*fields, (b"x-request-id", self.request_id.encode())])

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the answer; in a tunnel, bytes of the server."""
        if self._tunnel:
            self._note_progress()
            self._connection.send(data)
        else:
            super().response_body(data, chunks)

    def response_failed(self, why: str) -> None:
        """The connection to the agent ended: a tunnel ends with it."""
        if self._tunnel:
            self._end_tunnel()
        else:
            super().response_failed(why)

    def request_writable(self, *, ready: bool) -> None:
        """Whether the server takes more: of a tunnel nothing is held."""
        if self._tunnel:
            (self._connection.resume_reading if ready else self._connection.pause_reading)()

    def _enter_answer(self, head: ResponseHead) -> None:
        super()._enter_answer(head)
        self._events = None  # a stream passes as it comes

    def _begin_answer(self, head: ResponseHead, body: bytes, *, length: int | None) -> None:
        lines = self._returned(head)
        if self._head.method == b"HEAD" or head.status == _NOT_MODIFIED:  # they state a length and have none
            given = head.named.get(b"content-length")
            lines += b"" if given is None else b"content-length: %b\r\n" % given
            length = None
        self._connection.start(head.status, lines, length=length, body=body)

    def _engines_lines(self, head: ResponseHead) -> bytes:
        return lines_of(returned_by_app(head, self._name))

    # What ends it otherwise

    def overdue(self, now: float) -> None:
        """Ends the state whose deadline has passed at loop time `now`, if so."""
        if not self._tunnel:
            super().overdue(now)
        elif now >= self.deadline or (now >= self._key_at and not self._is_valid(now)):
            self._end_tunnel()

    def _is_valid(self, now: float) -> bool:
        """Whether its key has not ended."""
        self._key_at = now + _KEY_EVERY_S
        return any(self._models.keys.known(key) is not None for key in self._keys)

    def end_for_stop(self) -> None:
        """The gateway stops, and the time to drain is over."""
        if self._tunnel:
            self._end_tunnel()
        else:
            super().end_for_stop()

    def _comment(self, now: float) -> None:  # noqa: ARG002 - no text of ours stands in an answer
        self._comment_at = math.inf

    def _note_progress(self) -> None:
        if self._endpoint is not None:
            self.deadline = self._loop.time() + self._endpoint.limits.silence_timeout

    def _end_tunnel(self) -> None:
        if self._state not in OVER:
            self._over(DONE)
            self._connection.close()
