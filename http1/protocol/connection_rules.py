"""Which connections a server keeps: bounds in all and per address, and which connection yields.

`Connections` has the rules; it is pure, and times are arguments. `ConnectionAdmission` closes connections, counts and
logs them. A connection is `known` once one of its requests carried a valid key or credential. At a bound the unknown
connection that has stayed longest in its state yields: with an incomplete head, or whatever else a stranger can do.
Then known connections yield between two requests, or with a request that is refused; they yield first while unknown
connections are fewer than the reserve. Requests with a key never take all connections: some remain for new heads and
agents, some for administrators, and some for keys that have fewer than others.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Refusal(StrEnum):
    """Why a request with a valid key is refused."""

    CLIENT = "client"  # the client has too many incomplete bodies
    SHARE = "share"  # connections are few, and the client has its equal part
    ALL = "all"  # too many requests are served


class Standing(StrEnum):
    """Which connections a request may use."""

    KEY = "key"  # neither the administrators' nor the agents'
    ADMINISTRATOR = "administrator"  # not the agents'
    AGENT = "agent"  # all


class State(StrEnum):
    """Activity of a connection."""

    HEAD = "head"  # a request's head is incomplete
    BODY = "body"  # known; a request's body is incomplete
    BUSY = "busy"  # a request is being answered
    IDLE = "idle"  # the next request is awaited


# Names of their own: through the class each costs more than all else that a transition does.
HEAD, BODY, BUSY, IDLE = State
KEY, ADMINISTRATOR, AGENT = Standing


@dataclass(eq=False, slots=True)
class Connection:
    """One connection.

    Attributes:
        address: the other side's address, without the port.
        since_s: when it came into its state.
        counted: whether the bound for each address applies; not for trusted proxies, behind which all clients are.
        known: whether one of its requests carried a valid key or credential.
        client: the owner of the key; "" where clients are not distinguished.
        held: whether it counts as its client's: a request of that key is served.
        group: those of its server that are as known and in the same state; None: it is not counted.
    """

    address: str
    since_s: float
    counted: bool = True
    known: bool = False
    state: State = HEAD
    client: str = ""
    held: bool = False
    group: "_Group | None" = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and deadlines of one server.

    Attributes:
        most: connections in all.
        most_unknown_per_address: connections of one address that have not shown a valid key or credential.
        most_bodies_per_client: incomplete bodies of one client.
        reserved: connections that no requests may use but agents'.
        for_administrators: connections that requests of other keys may not use either.
        for_fewer: connections that requests of a key may not use which has its equal part, or is alone.
        head_s: seconds within which a request's head must be complete.
        answer_s: seconds within which a request without a valid key must be answered.
        idle_s: seconds for which a connection is kept for its next request.
        unread_s: seconds for which a connection does not yield to another one of its address, while more than the
            reserve is free: a client may open many at once, and all are accepted before the first head is read.
        body_s: seconds after which an incomplete body yields to another request where connections are few.
    """

    most: int
    most_unknown_per_address: int
    most_bodies_per_client: int
    reserved: int = 0
    for_administrators: int = 0
    for_fewer: int = 0
    head_s: float = 10.0
    answer_s: float = 30.0
    idle_s: float = 75.0
    unread_s: float = 5.0
    body_s: float = 10.0


_MOST: Final = 1 << 16
_MOST_UNKNOWN_PER_ADDRESS: Final = 512
_RESERVED_SHARE: Final = 8
_FURTHER_SHARE: Final = 16  # for administrators, and as much for keys that have fewer than others
_CLIENT_SHARE: Final = 5
_Group = dict[Connection, None]  # in order of insertion, which is the order of `since_s`


def limits_for(connections: int) -> Limits:
    """The usual limits of a server for this number of connections."""
    most = min(connections, _MOST)
    unknown = min(max(1, most // 2), _MOST_UNKNOWN_PER_ADDRESS)
    further = most // _FURTHER_SHARE
    return Limits(
        most,
        unknown,
        max(1, most // _CLIENT_SHARE),
        reserved=most // _RESERVED_SHARE,
        for_administrators=further,
        for_fewer=further,
    )


class Connections:
    """All open connections of one server.

    Attributes:
        few: whether requests were so many at the newest one that its key's part counts.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        served = limits.most - limits.reserved
        self._most_served = {KEY: served - limits.for_administrators, ADMINISTRATOR: served, AGENT: limits.most}
        self._few_from = self._most_served[KEY] - limits.for_fewer
        self._strangers: dict[State, _Group] = {state: {} for state in State}
        self._known: dict[State, _Group] = {state: {} for state in State}
        self._bodies, self._busy = self._known[BODY], self._known[BUSY]
        self._uncounted: _Group = {}  # known and busy, without a key or refused
        self._unknown: _Group = {}
        self._unknown_of: dict[str, _Group] = {}  # by address
        self._bodies_of: dict[str, _Group] = {}  # by client
        self._held_by: dict[str, int] = {}  # connections of each client that has some
        self._held = 0  # by all of them
        self.few = False

    def __len__(self) -> int:
        return len(self._unknown) + len(self._uncounted) + sum(map(len, self._known.values()))

    def count(self, state: State) -> int:
        """How many connections are in a state."""
        uncounted = len(self._uncounted) if state is BUSY else 0
        return len(self._strangers[state]) + len(self._known[state]) + uncounted

    def admit(self, connection: Connection) -> Connection | None:
        """Admits a new connection and returns the one that yields to it: None below the bounds, else maybe itself.

        The caller closes what is returned; it is no longer counted.
        """
        yielding: Connection | None = None
        mine = self._unknown_of.get(connection.address, {})
        oldest = next(iter(mine), None)
        crowded = connection.counted and len(mine) >= self._limits.most_unknown_per_address
        # One address beyond its bound leaves a reserve, so that other addresses take no place of one another.
        scarce = len(self) >= self._limits.most - self._limits.reserved
        if crowded and oldest is not None and (scarce or connection.since_s - oldest.since_s >= self._limits.unread_s):
            yielding = oldest
        elif len(self) >= self._limits.most:
            between = (self._known[IDLE], self._known[HEAD], self._uncounted)
            # The reserve is for new heads: they do not push one another out while others only wait for a request.
            few = len(self._unknown) < self._limits.reserved
            groups = (*between, self._unknown, [connection]) if few else (self._unknown, *between, [connection])
            yielding = next(connection_to_yield for group in groups for connection_to_yield in group)
        if yielding is not connection:
            if yielding is not None:
                self.remove(yielding)
            self._add(connection)
        return yielding

    def serve(
        self, connection: Connection, now_s: float, body: bool, client: str = "", standing: Standing = KEY
    ) -> tuple[Refusal | None, Connection | None]:
        """Makes a connection known and serves its request, unless too many are served.

        Args:
            connection: the connection; its request carried a valid key or credential.
            now_s: the time.
            body: whether the request's body is incomplete.
            client: the owner of the key; "" where clients are not distinguished.
            standing: decides which connections it may use.

        Returns:
            Why the request is not served, and the connection that yields to it, which the caller closes.
        """
        if connection.held:
            self._let_go(connection)
        refusal: Refusal | None = None
        yielding: Connection | None = None
        self.few = standing is not AGENT and len(self._busy) + len(self._bodies) >= self._few_from
        if self.few or body:
            refusal, yielding = self._refusal(connection, body, client, standing)
        if yielding is not None:
            if now_s - yielding.since_s >= self._limits.body_s:
                self.remove(yielding)
                refusal = None
            else:
                yielding = None
        if refusal is not None:
            if connection.known and self._take(connection):
                self._put(connection, self._uncounted, BUSY, now_s)
            return refusal, yielding
        group = connection.group
        if connection.known and group is not None and group is not self._bodies and not body:
            del group[connection]
            self._put(connection, self._busy, BUSY, now_s)
        elif self._take(connection):
            connection.known = True
            connection.client, connection.state, connection.since_s = client, BODY if body else BUSY, now_s
            self._add(connection)
        connection.client = client
        if client and standing is KEY and connection.group is not None:
            connection.held = True
            self._held += 1
            self._held_by[client] = self._held_by.get(client, 0) + 1
        return refusal, yielding

    def _refusal(
        self, connection: Connection, body: bool, client: str, standing: Standing
    ) -> tuple[Refusal | None, Connection | None]:
        """Why a request is refused, and the connection whose end would admit it."""
        if body and client and len(self._bodies_of.get(client, ())) >= self._limits.most_bodies_per_client:
            return Refusal.CLIENT, next(iter(self._bodies_of[client]))
        group = connection.group
        served = len(self._busy) + len(self._bodies) - (group is self._busy or group is self._bodies)
        if not self.few or served < self._few_from:
            return None, None
        if served >= self._most_served[standing]:
            return Refusal.ALL, next(iter(self._bodies), None)
        if standing is KEY and client:
            mine = self._held_by.get(client, 0)
            others = len(self._held_by) - (mine > 0)
            if mine and mine * (others + 1) >= self._held:
                return Refusal.SHARE, next(iter(self._bodies_of.get(client, ())), None)
        return None, None

    def with_most(self, client: str) -> str | None:
        """The client that holds the most connections, if more than this one with another; None otherwise."""
        most = max(self._held_by, key=self._held_by.__getitem__, default=client)
        return most if self._held_by.get(most, 0) > self._held_by.get(client, 0) + 1 else None

    def enter(self, connection: Connection, state: State, now_s: float) -> None:
        """Moves a connection to another state. A removed one stays so.

        A known one that becomes busy without `serve` yields: many could otherwise take all connections.
        """
        if connection.held and state is not BUSY:
            self._let_go(connection)
        group = connection.group
        if group is not None and connection.known and group is not self._bodies and state is not BODY:
            served = state is not BUSY or group is self._busy
            del group[connection]  # it is in no other group
            group = connection.group = self._known[state] if served else self._uncounted
            group[connection] = None
            connection.state, connection.since_s = state, now_s
        elif self._take(connection):
            connection.state, connection.since_s = state, now_s
            self._add(connection)

    def _put(self, connection: Connection, group: _Group, state: State, now_s: float) -> None:
        """Puts a known one, which is in no group, into this one."""
        connection.group = group
        group[connection] = None
        connection.state, connection.since_s = state, now_s

    def _let_go(self, connection: Connection) -> None:
        connection.held = False
        self._held -= 1
        left = self._held_by[connection.client] - 1
        if left:
            self._held_by[connection.client] = left
        else:
            del self._held_by[connection.client]

    def remove(self, connection: Connection) -> None:
        """Forgets a connection; repeating it changes nothing."""
        if connection.held:
            self._let_go(connection)
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
        overdue = []
        for group, limit_s in deadlines:
            for connection in group:
                if now_s - connection.since_s < limit_s:
                    break
                overdue.append(connection)
        return overdue

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
