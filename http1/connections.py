"""Which connections a server keeps: bounds in all and per address, and which one gives way. Pure; times are arguments.

A connection is `known` once one of its requests carried a valid key or credential. At a bound the unknown connection
that has stayed longest in its state gives way: with an incomplete head, or whatever else a stranger can do. Then go
known ones between two requests; they go first while the unknown ones are fewer than the reserve. Requests with a key
never take all connections: some remain for new heads and agents.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Refusal(StrEnum):
    """Why a request with a valid key is not served."""

    CLIENT = "client"  # the client has too many incomplete bodies
    ALL = "all"  # too many requests are served


class State(StrEnum):
    """What a connection does."""

    HEAD = "head"  # a request's head is incomplete
    BODY = "body"  # known; a request's body is incomplete
    BUSY = "busy"  # a request is being answered
    IDLE = "idle"  # the next request is awaited


# Names of their own: through the class each costs more than all else that a transition does.
HEAD, BODY, BUSY, IDLE = State


@dataclass(eq=False, slots=True)
class Connection:
    """One connection.

    Attributes:
        address: of the other side, without the port.
        since_s: when it came into its state.
        counted: whether the bound for each address applies; not for trusted proxies, behind which all clients are.
        known: whether one of its requests carried a valid key or credential.
        client: whose key it was; "" where clients are not told apart.
        group: those of its server that are as known and in the same state; None: it is not counted.
    """

    address: str
    since_s: float
    counted: bool = True
    known: bool = False
    state: State = HEAD
    client: str = ""
    group: "_Group | None" = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and deadlines of one server.

    Attributes:
        most: connections in all.
        most_unknown_per_address: connections of one address that have not shown a valid key or credential.
        most_bodies_per_client: incomplete bodies of one client.
        reserved: connections that clients with a key may not use for requests.
        head_s: seconds within which a request's head must be complete.
        answer_s: seconds within which a request without a valid key must be answered.
        idle_s: seconds for which a connection is kept for its next request.
        unread_s: seconds for which a connection does not give way to another one of its address: a client may open many
            at once, and all are accepted before the first of their heads is read.
        body_s: seconds after which an incomplete body gives way to another request where connections are few.
    """

    most: int
    most_unknown_per_address: int
    most_bodies_per_client: int
    reserved: int = 0
    head_s: float = 10.0
    answer_s: float = 30.0
    idle_s: float = 75.0
    unread_s: float = 5.0
    body_s: float = 10.0


_MOST: Final = 1 << 16
_MOST_UNKNOWN_PER_ADDRESS: Final = 512
_RESERVED_SHARE: Final = 8
_CLIENT_SHARE: Final = 5
_Group = dict[Connection, None]  # in order of insertion, which is the order of `since_s`


def limits_for(connections: int) -> Limits:
    """The usual limits of a server that can have so many connections."""
    most = min(connections, _MOST)
    unknown = min(max(1, most // 2), _MOST_UNKNOWN_PER_ADDRESS)
    return Limits(most, unknown, max(1, most // _CLIENT_SHARE), reserved=most // _RESERVED_SHARE)


class Connections:
    """All open connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most_served = limits.most - limits.reserved
        self._strangers: dict[State, _Group] = {state: {} for state in State}
        self._known: dict[State, _Group] = {state: {} for state in State}
        self._bodies, self._busy = self._known[BODY], self._known[BUSY]
        self._unknown: _Group = {}
        self._unknown_of: dict[str, _Group] = {}  # by address
        self._bodies_of: dict[str, _Group] = {}  # by client

    def __len__(self) -> int:
        return len(self._unknown) + sum(map(len, self._known.values()))

    def count(self, state: State) -> int:
        """How many connections are in a state."""
        return len(self._strangers[state]) + len(self._known[state])

    def admit(self, connection: Connection) -> Connection | None:
        """Admits a new connection and returns the one that gives way to it: None below the bounds, else maybe itself.

        The caller closes what is returned; it is no longer counted.
        """
        yielding: Connection | None = None
        mine = self._unknown_of.get(connection.address, {})
        oldest = next(iter(mine), None)
        crowded = connection.counted and len(mine) >= self._limits.most_unknown_per_address
        if crowded and oldest is not None and connection.since_s - oldest.since_s >= self._limits.unread_s:
            yielding = oldest
        elif len(self) >= self._limits.most:
            between = (self._known[IDLE], self._known[HEAD])
            # The reserve is for new heads: they do not push one another out while others only wait for a request.
            few = len(self._unknown) < self._limits.reserved
            groups = (*between, self._unknown, [connection]) if few else (self._unknown, *between, [connection])
            yielding = next(found for group in groups for found in group)
        if yielding is not connection:
            if yielding is not None:
                self.remove(yielding)
            self._add(connection)
        return yielding

    def serve(
        self, connection: Connection, now_s: float, body: bool, client: str = "", agent: bool = False
    ) -> tuple[Refusal | None, Connection | None]:
        """Makes a connection known and serves its request, unless too many are served.

        Args:
            connection: whose request carried a valid key or credential.
            now_s: the time.
            body: whether the request's body is incomplete.
            client: whose key it was; "" where clients are not told apart.
            agent: whether it is an agent's, which may use reserved connections.

        Returns:
            Why the request is not served, and the connection that gives way to it, which the caller closes.
        """
        refusal: Refusal | None = None
        yielding: Connection | None = None
        if body and client and len(self._bodies_of.get(client, ())) >= self._limits.most_bodies_per_client:
            refusal, yielding = Refusal.CLIENT, next(iter(self._bodies_of[client]))
        elif not agent and len(self._busy) + len(self._bodies) >= self._most_served:
            refusal, yielding = Refusal.ALL, next(iter(self._bodies), None)
        if yielding is not None:
            if now_s - yielding.since_s >= self._limits.body_s:
                self.remove(yielding)
                refusal = None
            else:
                yielding = None
        if refusal is None:
            if connection.known and connection.state is not BODY and not body:
                self.enter(connection, BUSY, now_s)
            elif self._take(connection):
                connection.known = True
                connection.client, connection.state, connection.since_s = client, BODY if body else BUSY, now_s
                self._add(connection)
            connection.client = client
        return refusal, yielding

    def enter(self, connection: Connection, state: State, now_s: float) -> None:
        """Moves a connection to another state. A removed one stays so."""
        group = connection.group
        if group is not None and connection.known and group is not self._bodies and state is not BODY:
            del group[connection]  # it is in no other group
            group = connection.group = self._known[state]
            group[connection] = None
            connection.state, connection.since_s = state, now_s
        elif self._take(connection):
            connection.state, connection.since_s = state, now_s
            self._add(connection)

    def remove(self, connection: Connection) -> None:
        """Forgets a connection; repeating it changes nothing."""
        self._take(connection)

    def overdue(self, now_s: float) -> list[Connection]:
        """Those whose head, answer or next request is overdue, in no order. They stay counted until removed."""
        limits = self._limits
        deadlines = (
            (self._strangers[HEAD], limits.head_s),
            (self._known[HEAD], limits.head_s),
            (self._strangers[BUSY], limits.answer_s),
            (self._strangers[IDLE], limits.idle_s),
            (self._known[IDLE], limits.idle_s),
        )
        found = []
        for group, limit_s in deadlines:
            for connection in group:
                if now_s - connection.since_s < limit_s:
                    break
                found.append(connection)
        return found

    def _add(self, connection: Connection) -> None:
        group = connection.group = (self._known if connection.known else self._strangers)[connection.state]
        group[connection] = None
        if connection.known:
            if group is self._bodies and connection.client:
                self._bodies_of.setdefault(connection.client, {})[connection] = None
            return
        self._unknown[connection] = None
        if connection.counted:
            self._unknown_of.setdefault(connection.address, {})[connection] = None

    def _take(self, connection: Connection) -> bool:
        group, connection.group = connection.group, None
        if group is None:
            return False
        del group[connection]
        if group is self._bodies:
            _discard(self._bodies_of, connection.client, connection)
        elif not connection.known:
            del self._unknown[connection]
            _discard(self._unknown_of, connection.address, connection)
        return True


def _discard(groups: dict[str, _Group], name: str, connection: Connection) -> None:
    """Removes a connection from the named group, and the group once it is empty."""
    group = groups.get(name, {})
    group.pop(connection, None)
    if not group:
        groups.pop(name, None)
