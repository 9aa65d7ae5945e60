"""A request whose key is known: its limits are checked, its body is read in bounds."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from controller.live.key_ring import Principal
from gateway.errors import GatewayError
from gateway.requests.admitting import Admitting
from gateway.requests.holding import Models
from gateway.requests.states import OVER, RECEIVING
from http1.bodies import BodiesFullError, keep
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection

MAX_BODY_BYTES: Final = 64 * 2**20


class Receiving(Admitting):
    """The part of an exchange that ends with a complete request."""

    __slots__ = ("_admitted", "_complete", "_principal", "_size")

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
    ) -> None:
        super().__init__(models, head, connection, request_id, admit)
        self._admitted = False
        body = head.take_body()
        self._complete = body is not None or head.length == 0
        self._size = 0  # of the body
        if body is not None:
            self._pieces.append(body)
            self._size = len(body)
        self._principal: Principal | None = None

    def _admission(self, principal: Principal) -> None:
        """Refuses by key, limits and head, before the body is read."""
        try:
            self._admit(principal)
            self._passage = self._models.meter.begin(principal, self._path)
        except GatewayError as error:
            self.fail(error)
            return
        if self._passage is None:
            self._work(self._await_share, principal)
        else:
            self._receive(principal)

    async def _await_share(self, principal: Principal) -> None:
        """No request but one that would be refused gets here."""
        passage = await self._of_database(partial(self._models.meter.wait, principal, self._path))
        if self._state in OVER:
            passage.over()
        else:
            self._passage = passage
            self._receive(principal)

    def _receive(self, principal: Principal) -> None:
        """Its key and limits let it pass: the body may come."""
        try:
            self._principal = principal
            self.key, self.role = principal.key_id, principal.role
            self._hold = self._models.bodies.begin(principal.key_id)
            self._take(max(self._head.length or 0, self._size))
        except GatewayError as error:
            self.fail(error)
            return
        self._admitted = True
        if self._complete:
            self._route()
        else:
            if self._head.expects_continue:
                self._connection.send_continue()
            self._connection.resume_reading()

    def _take(self, size: int) -> None:
        """Counts the body's bytes: announced ones before they are sent, the others as they come."""
        if size > MAX_BODY_BYTES:
            message = f"body: larger than {MAX_BODY_BYTES} bytes; split it or make it smaller"
            raise GatewayError(413, "too_large", message)
        if self._hold is None:
            return
        try:
            self._hold.take_up_to(size)
        except BodiesFullError as error:
            raise _bodies_full(error) from error

    def body(self, data: bytes) -> None:
        """A part of the request's body."""
        if self._state is not RECEIVING:
            return
        keep(self._pieces, data)
        self._size += len(data)
        if not self._admitted:
            self._connection.pause_reading()
            return
        if self._hold is not None and self._size <= self._hold.size:
            return  # announced
        try:
            self._take(self._size)
        except GatewayError as error:
            self.fail(error)

    def end(self) -> None:
        """The request is complete."""
        self._complete = True
        if self._admitted and self._state is RECEIVING:
            self._route()

    @abstractmethod
    def _route(self) -> None:
        """The request is complete: it goes to a replica."""


def _bodies_full(error: BodiesFullError) -> GatewayError:
    limit = f"{error.limit_bytes // 2**20} MiB"
    if error.of_key:
        message = f"body: this key's requests in flight would hold more than {limit}; wait until others are answered"
        return GatewayError(429, "too_much_in_flight", message)
    return GatewayError(
        503, "overloaded", f"body: all requests in flight would hold more than {limit}; try again in a moment"
    )
