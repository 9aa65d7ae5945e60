"""The controller, or several, as the gateway reaches them; and the gateway's own small requests to them."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import orjson

from http1.daemon.log_limit import LogLimit
from http1.fetch import FetchError, fetch
from http1.forwarded import GATEWAY_HEADER
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import Address, ConnectError
from http1.protocol.heads import Fields, ResponseHead
from http1.relay import Relay

DATABASE_KEPT_S: Final = 0.55  # how old the controller's report of its database may be
_GATEWAY_FIELD: Final = GATEWAY_HEADER.lower().encode()
_READY: Final = b"/readyz"
_MOST_BYTES: Final = 64 * 2**20


@dataclass(slots=True)
class Controller:
    """The controllers, which share a database: the first that answers gets the requests.

    Attributes:
        address: of the current controller: its Unix socket, or host and port.
        secret: by which it trusts the gateway's fields about clients; empty on its socket.
        pool: makes the connections; none is kept.
        most_strangers: requests without a valid key that may have a connection at once.
        under_way: requests that are passed on.
        failures: bounds log lines about requests that could not be passed on.
        others: addresses of further controllers, in the order in which they are tried.
        strangers: requests without a valid key that have a connection, oldest first.
    """

    address: Address
    secret: str
    pool: Pool
    most_strangers: int
    under_way: set[Relay] = field(default_factory=set)
    failures: LogLimit = field(default_factory=LogLimit)
    others: deque[Address] = field(default_factory=deque)
    strangers: dict[Relay, None] = field(default_factory=dict)

    async def connect(self) -> ClientConnection:
        """A new connection, to the next controller where this one refuses.

        Raises:
            ConnectError: none of them accepts.
        """
        for _ in range(len(self.others)):
            address = self.address
            try:
                return await self.pool.connect(address)
            except ConnectError:
                self.silent(address)
        return await self.pool.connect(self.address)

    def admit_stranger(self, relay: Relay) -> None:
        """Counts a request without a valid key until it is over; at the bound the oldest one's client is cut."""
        if len(self.strangers) >= self.most_strangers:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.client.evict()
        self.strangers[relay] = None

    def silent(self, address: Address) -> None:
        """Sends requests to the next controller, if this address is the current one."""
        if self.others and address == self.address:
            self.others.append(self.address)
            self.address = self.others.popleft()

    def credential(self) -> Fields:
        """Fields by which the controller recognizes the gateway."""
        return [(_GATEWAY_FIELD, self.secret.encode())] if self.secret else []

    async def fetch(self, path: bytes, fields: Fields, limit_s: float) -> tuple[ResponseHead, bytes]:
        """Head and body of the answer to a GET. A controller without an answer is tried last from then on.

        Raises:
            FetchError: no answer within the limit, or a too large one.
        """
        requested = self.address

        async def connect() -> ClientConnection:
            nonlocal requested
            connection = await self.connect()
            requested = self.address
            return connection

        sent = [(b"host", b"controller"), *fields, *self.credential()]
        try:
            head, body = await fetch(connect, b"GET", path, sent, limit_s=limit_s, most_bytes=_MOST_BYTES + 1)
        except FetchError:
            self.silent(requested)
            raise
        if len(body) > _MOST_BYTES:
            raise FetchError("the answer is too large")
        return head, body

    async def has_database(self, limit_s: float) -> bool:
        """Whether the controller reports that it reaches the database; False also without an answer.

        So a gateway knows whether it alone has lost the database.
        """
        try:
            _, body = await self.fetch(_READY, [], limit_s)
            return bool(orjson.loads(body)["checks"]["database"]["ok"])
        except (FetchError, orjson.JSONDecodeError, KeyError, TypeError):
            return False
