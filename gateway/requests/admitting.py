"""Before all else a request's key is looked up: in memory, or where it is not, among all keys."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from controller.live.key_ring import Principal
from gateway.errors import GatewayError
from gateway.requests.holding import Holding, Models
from gateway.requests.states import OVER
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection


class Admitting(Holding):
    """The part of an exchange that ends with a key's owner. `admit` refuses the owner by a `GatewayError`."""

    __slots__ = ("_admit",)

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
    ) -> None:
        super().__init__(models, head, connection, request_id)
        self._admit = admit

    def begin(self, principal: Principal | None, keys: Sequence[str]) -> None:
        """Admits it at once where its key is in memory, else looks the keys up: the first valid one counts."""
        self._models.under_way.add(self)
        if principal is not None:
            self._admission(principal)
        else:
            self._work(self._authenticate, keys)

    async def _authenticate(self, keys: Sequence[str]) -> None:
        principal = await self._of_database(lambda _: self._models.keys.first_owner(keys))
        if self._state not in OVER:
            if principal is None:
                self.fail(self._unknown())
            else:
                self._admission(principal)

    def _unknown(self) -> GatewayError:
        """The error without a valid key."""
        return unauthenticated()

    @abstractmethod
    def _admission(self, principal: Principal) -> None:
        """Its key is known: goes on, or refuses the owner."""


def unauthenticated() -> GatewayError:
    """401."""
    return GatewayError(
        401,
        "unauthenticated",
        "API key is missing or invalid; send Authorization: Bearer KEY (for gpuward: set GPUWARD_API_KEY)",
        headers={"WWW-Authenticate": "Bearer"},
    )
