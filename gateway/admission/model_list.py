"""The list of models, for a key that is not in memory yet: the key is looked up before the list is sent."""

from collections.abc import Callable

from controller.live.key_ring import Principal
from gateway.errors import GatewayError, unavailable
from gateway.requests.admitting import Admitting
from gateway.requests.holding import Models
from gateway.requests.states import DONE
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection


class Listing(Admitting):
    """One request for the list. It counts against no limit, and no replica sees it.

    Args:
        models: what all exchanges share.
        head: of the request.
        connection: of the client.
        request_id: of the request.
        admit: called with its key's owner; it refuses by a `GatewayError`.
        answer: sends the list that the key's owner may see.
    """

    __slots__ = ("_list",)

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
        answer: Callable[[Principal], None],
    ) -> None:
        super().__init__(models, head, connection, request_id, admit)
        self._list = answer

    def body(self, _data: bytes) -> None:
        """A list needs none: it is dropped."""

    def end(self) -> None:
        """The request is complete; the list waits for its key alone."""

    def writable(self, *, ready: bool) -> None:
        """The list waits in the transport."""

    def overdue(self, now: float) -> None:
        """Ends it where the key was not looked up in time."""
        if now >= self.deadline:
            self.fail(unavailable("the key was not checked in time; try again in a moment"))

    def _admission(self, principal: Principal) -> None:
        try:
            self._admit(principal)
        except GatewayError as error:
            self.fail(error)
            return
        self._over(DONE)
        self._list(principal)
