"""Admits the connections of one server by the rules of `http1.protocol.connection_rules`: closes, counts and logs."""

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from http1.daemon.sweeper import Sweeper
from http1.protocol.connection_rules import HEAD, KEY, Connection, Connections, Limits, Refusal, Standing, State

log = structlog.get_logger(__name__)

SWEEP_S: Final = 1.0
_LOG_EVERY_S: Final = 60.0
_SATURATIONS: Final = ("bound", "body", "refused")


class Guarded(Protocol):
    """A connection that this admission counts."""

    @property
    def record(self) -> Connection:
        """Its entry in the rules."""

    def shut(self, *, late_head: bool) -> None:
        """Ends it at once, or in a moment; `late_head`: a part of a head has come, and the rest has not."""


class ConnectionAdmission:
    """The bounded connections of one server.

    Args:
        limits: the bounds and deadlines.
        name: the server's name in logs.
        is_proxy: whether an address is a trusted proxy's, to which the bound for each address does not apply.
        make_way: called with a client that holds more connections than another one, which needs some where they are
            few: ends a request of it that has cost nothing yet, and returns whether there was one.
        closed: a metric. Called with `bound`, `head`, `busy`, `idle` or `body` for each connection that was closed for
            it, with `handshake` for each that failed in that of TLS, and with `refused` for each request that found too
            many others.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        name: str,
        is_proxy: Callable[[str], bool] = lambda _address: False,
        make_way: Callable[[str], bool] = lambda _client: False,
        closed: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._make_way = make_way
        self.connections = Connections(limits)
        self._limits = limits
        self._name = name
        self._is_proxy = is_proxy
        self._closed = closed
        self._of: dict[Connection, Guarded] = {}
        self._now: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        self._sweeper = Sweeper("connections", SWEEP_S, self._sweep)
        self._logged_s = float("-inf")
        self._saturated: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.connections)

    def count(self, state: State) -> int:
        return self.connections.count(state)

    def admit(self, guarded: Guarded) -> bool:
        """Takes a new connection up; False where it must end at once, which `shut` does.

        One that was admitted for its handshake keeps its place and its time.
        """
        record = guarded.record
        if record in self._of:
            self._of[record] = guarded
            if record.group is None:
                guarded.shut(late_head=False)
            return record.group is not None
        self._of[record] = guarded
        record.counted = not self._is_proxy(record.address)
        yielding = self.connections.admit(record)
        if yielding is not None:
            self.close(yielding, "bound")
        if yielding is record:  # a handshake that does not begin has no end to notify of
            self.lost(record)
        if self._sweeper.due == math.inf:
            self._now = asyncio.get_running_loop().time  # each `get_running_loop` is a system call
            self._sweeper.start()
        return yielding is not record

    def settle(
        self,
        record: Connection,
        body: bool,
        client: str,
        standing: Standing,
        decided: tuple[Refusal | None, Connection | None],
    ) -> Refusal | None:
        """Closes the connection that yields to a request, and counts a refused request.

        Args:
            record: the entry of the request's connection.
            body: whether its body is incomplete.
            client: the owner of the key; "" where clients are not distinguished.
            standing: decides which reserved connections it may use.
            decided: the result of `Connections.serve`.

        Returns:
            The reason to refuse the request, which is a 429 where its client has too much and a 503 where all have.
        """
        connections, (refusal, yielding) = self.connections, decided
        # A request that is refused for its own key's part is not helped by another one's end.
        if connections.few and standing is KEY and client and refusal in (None, Refusal.ALL):
            most = connections.with_most(client)
            if most is not None and self._make_way(most) and refusal is Refusal.ALL:
                refusal, yielding = connections.serve(record, self._now(), body, client, standing)
        if yielding is not None:
            self.close(yielding, "body")
        if refusal is not None:
            self.count_closed("refused")
        return refusal

    def lost(self, record: Connection) -> None:
        self.connections.remove(record)
        self._of.pop(record, None)

    def close(self, record: Connection, reason: str) -> None:
        """Closes a connection for this reason, which is counted."""
        self.connections.remove(record)
        guarded = self._of.get(record)
        if guarded is not None:
            self.count_closed(reason)
            guarded.shut(late_head=reason == HEAD)

    def _sweep(self, now: float) -> None:
        self._sweeper.each(self.connections.overdue(now), lambda record: self.close(record, record.state.value))
        if not len(self.connections):
            self._sweeper.stop()

    def count_closed(self, reason: str) -> None:
        """Counts what a bound closed; logs at most once a minute that connections are saturated."""
        self._closed(reason)
        if reason not in _SATURATIONS:
            return
        self._saturated[reason] = self._saturated.get(reason, 0) + 1
        now_s = self._now()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            log.warning(
                "connections are saturated",
                server=self._name,
                most=self._limits.most,
                most_unknown_per_address=self._limits.most_unknown_per_address,
                **self._saturated,
            )
            self._saturated.clear()
