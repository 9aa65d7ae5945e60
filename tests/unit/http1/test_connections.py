from hypothesis import given
from hypothesis import strategies as st

from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Connection, Connections, Limits, Refusal, Standing, State, limits_for


def limits(most: int, unknown: int = 100, **others: float) -> Limits:
    base = {"most": most, "most_unknown_per_address": unknown, "most_bodies_per_client": 2, "unread_s": 0.0}
    return Limits(**{**base, **others})


LIMITS = limits(4, 3)


def opened(connections: Connections, address: str, at: float, *, counted: bool = True) -> Connection:
    connection = Connection(address, at, counted)
    assert connections.admit(connection) is None
    return connection


def test_below_the_bounds_every_connection_is_admitted() -> None:
    connections = Connections(LIMITS)
    for n in range(4):
        opened(connections, f"10.0.0.{n}", n)
    assert (len(connections), connections.count(State.HEAD)) == (4, 4)


def test_at_the_bound_the_oldest_without_a_complete_head_gives_way() -> None:
    connections = Connections(LIMITS)
    first, *_ = [opened(connections, f"10.0.0.{n}", n) for n in range(4)]
    assert connections.admit(Connection("10.0.1.1", 5)) is first
    assert len(connections) == 4


def test_many_that_one_address_opens_at_once_are_kept_until_their_heads_can_have_been_read() -> None:
    """G24: a client opens 1,500 streams, and all are accepted before the first head is read."""
    connections = Connections(limits(100, 3, unread_s=5.0))
    first, second, *_ = [opened(connections, "10.0.0.1", n / 1000) for n in range(20)]
    assert connections.admit(Connection("10.0.0.1", 5.0)) is first
    serve(connections, second, 5.0)
    assert len(connections) == 20, "from then on each new one takes the place of the oldest that has not asked"
    flood = Connections(limits(100, 3, unread_s=5.0))
    for n in range(100):
        opened(flood, "10.0.0.1", n / 1000)
    assert flood.admit(Connection("10.0.0.2", 0.2)) is not None, "and the bound of all holds at every moment"
    assert len(flood) == 100


def test_what_one_address_opens_at_once_leaves_the_reserve_to_others() -> None:
    connections = Connections(Limits(16, 3, 2, reserved=4, unread_s=5.0))
    slow = opened(connections, "10.0.0.2", 0.0)
    flood = [opened(connections, "10.0.0.1", 0.001 * n) for n in range(11)]
    for n, oldest in enumerate(flood):
        assert connections.admit(Connection("10.0.0.1", 0.1 + 0.001 * n)) is oldest
    others = [opened(connections, f"10.0.1.{n}", 1.0 + n) for n in range(4)]
    assert connections.admit(Connection("10.0.0.1", 5.0)) not in (None, slow, *others)
    assert len(connections) == 16


def test_a_new_head_on_an_idle_connection_counts_from_its_first_byte() -> None:
    connections = Connections(LIMITS)
    first, second, *_ = [opened(connections, f"10.0.0.{n}", n) for n in range(4)]
    connections.enter(first, State.IDLE, 10)
    connections.enter(first, State.HEAD, 11)
    assert connections.admit(Connection("10.0.1.1", 12)) is second


def serve(connections: Connections, connection: Connection, at: float, *, body: bool = False) -> None:
    assert connections.serve(connection, at, body=body) == (None, None)


def test_unknown_connections_give_way_before_known_ones_and_served_ones_never() -> None:
    connections = Connections(LIMITS)
    known, unknown_busy, unknown_idle, busy = [opened(connections, f"10.0.0.{n}", n) for n in range(4)]
    serve(connections, known, 5)
    connections.enter(known, State.IDLE, 5)
    connections.enter(unknown_busy, State.BUSY, 5)
    connections.enter(unknown_idle, State.IDLE, 6)
    serve(connections, busy, 5)
    for expected in (unknown_busy, unknown_idle, known):
        new = Connection("10.0.1.1", 7)
        assert connections.admit(new) is expected
        serve(connections, new, 8, body=True)
    refused = Connection("10.0.1.3", 11)
    assert connections.admit(refused) is refused
    assert len(connections) == 4


def test_reserved_connections_are_for_heads_and_agents() -> None:
    connections = Connections(limits(4, 4, reserved=2))
    first, second, third, agent = [opened(connections, f"10.0.0.{n}", n) for n in range(4)]
    serve(connections, first, 5)
    serve(connections, second, 5)
    assert connections.serve(third, 6, body=False) == (Refusal.ALL, None)
    assert not third.known
    assert connections.serve(agent, 6, body=False, standing=Standing.AGENT) == (None, None)
    connections.enter(first, State.IDLE, 7)
    assert connections.serve(third, 7, body=False) == (Refusal.ALL, None)
    connections.remove(agent)
    serve(connections, third, 8)


def test_an_incomplete_body_gives_way_to_a_request_once_it_is_old_and_connections_are_few() -> None:
    connections = Connections(limits(4, 4, reserved=2, body_s=10))
    slow, newer, new = [opened(connections, f"10.0.0.{n}", n) for n in range(3)]
    serve(connections, slow, 5, body=True)
    serve(connections, newer, 8, body=True)
    assert connections.serve(new, 14, body=False) == (Refusal.ALL, None)
    assert connections.serve(new, 15, body=False) == (None, slow)
    assert len(connections) == 2


def test_the_bound_of_an_address_counts_unknown_connections_only() -> None:
    connections = Connections(limits(100, 2))
    first = opened(connections, "10.0.0.1", 0)
    serve(connections, first, 1)
    second = opened(connections, "10.0.0.1", 2)
    opened(connections, "10.0.0.1", 3)
    assert connections.admit(Connection("10.0.0.1", 4)) is second
    opened(connections, "10.0.0.2", 5)


def test_the_bound_of_an_address_does_not_apply_to_a_proxy() -> None:
    connections = Connections(limits(100, 2))
    for n in range(10):
        opened(connections, "10.0.0.1", n, counted=False)


def test_one_client_holds_few_incomplete_bodies_and_its_oldest_gives_way_once_it_is_old() -> None:
    connections = Connections(limits(100, 100, body_s=10))
    first, second, third, other = [opened(connections, f"10.0.0.{n}", n) for n in range(4)]
    for connection in (first, second):
        assert connections.serve(connection, 5, body=True, client="key") == (None, None)
    assert connections.serve(third, 6, body=True, client="key") == (Refusal.CLIENT, None)
    assert connections.serve(third, 6, body=False, client="key") == (None, None)
    assert connections.serve(other, 6, body=True, client="other") == (None, None)
    connections.enter(second, State.BUSY, 7)
    assert connections.serve(third, 8, body=True, client="key") == (None, None)
    new = opened(connections, "10.0.0.9", 9)
    assert connections.serve(new, 15, body=True, client="key") == (None, first)


def test_what_a_stranger_keeps_busy_gives_way_before_a_new_head() -> None:
    connections = Connections(limits(100, 2))
    join, new = opened(connections, "10.0.0.1", 0), opened(connections, "10.0.0.1", 1)
    connections.enter(join, State.BUSY, 0.5)
    opened(connections, "10.0.0.2", 2)
    connections.enter(new, State.IDLE, 2)
    assert connections.admit(Connection("10.0.0.1", 3)) is join


def test_what_strangers_and_idle_connections_take_too_long_for_is_overdue() -> None:
    connections = Connections(limits(10, 10))
    head, idle, busy, served, body = (opened(connections, f"10.0.0.{n}", 0) for n in range(5))
    connections.enter(idle, State.IDLE, 0)
    connections.enter(busy, State.BUSY, 0)
    serve(connections, served, 0)
    serve(connections, body, 0, body=True)
    assert connections.overdue(9.9) == []
    assert connections.overdue(10) == [head]
    assert connections.overdue(30) == [head, busy]
    assert set(connections.overdue(75)) == {head, idle, busy}


def test_what_was_removed_stays_so() -> None:
    connections = Connections(LIMITS)
    gone = opened(connections, "10.0.0.1", 0)
    for _ in range(2):
        connections.remove(gone)
    connections.enter(gone, State.BUSY, 1)
    connections.serve(gone, 2, body=True, client="key")
    assert len(connections) == 0


STANDINGS = (Standing.KEY, Standing.KEY, Standing.ADMINISTRATOR, Standing.AGENT)
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.booleans()), max_size=200)


@given(STEPS)
def test_whatever_happens_the_bounds_hold_and_no_served_one_gives_way(steps: list[tuple[int, int, bool]]) -> None:
    connections, living = Connections(limits(6, 4, reserved=2, body_s=3)), list[Connection]()
    for now, (what, which, flag) in enumerate(steps):
        if what == 0 or not living:
            new = Connection(f"10.0.0.{which % 2}", now, flag)
            yielding = connections.admit(new)
            if yielding is not new:
                living.append(new)
            if yielding is not None and yielding is not new:
                assert not yielding.known or yielding.state not in (State.BUSY, State.BODY)
                living.remove(yielding)
        elif what == 1:
            connections.remove(living.pop(which % len(living)))
        elif what == 2:
            client, standing = ("", "a", "b")[which % 3], STANDINGS[which % 4]
            _, slow = connections.serve(living[which % len(living)], now, body=flag, client=client, standing=standing)
            if slow is not None:
                assert now - slow.since_s >= 3
                living.remove(slow)
        else:
            state = (State.HEAD, State.BUSY, State.IDLE)[which % 3]
            connection = living[which % len(living)]
            connections.enter(connection, State.IDLE if connection.known else state, now)
        assert len(connections) == len(living) <= 6
        for address in ("10.0.0.0", "10.0.0.1"):
            assert sum(c.address == address and c.counted and not c.known for c in living) <= 4


def test_usual_limits_leave_room_for_heads_and_agents_and_bound_what_one_stranger_holds() -> None:
    few, many = limits_for(416), limits_for(500_000)
    assert (few.most, few.most_unknown_per_address, few.most_bodies_per_client, few.reserved) == (416, 208, 83, 52)
    assert (few.for_administrators, few.for_fewer) == (26, 26)
    assert (many.most, many.most_unknown_per_address) == (65_536, 512)


def test_idle_connections_of_a_key_leave_room_for_several_new_heads() -> None:
    connections = Connections(limits(16, 8, reserved=4))
    idle = [opened(connections, f"10.0.0.{n}", n) for n in range(16)]
    for connection in idle:
        serve(connections, connection, 20)
        connections.enter(connection, State.IDLE, 20)
    heads = [Connection(f"10.0.1.{n}", 21) for n in range(5)]
    assert [connections.admit(head) for head in heads] == [*idle[:4], heads[0]]


FEW = limits(32, 32, reserved=4, for_administrators=3, for_fewer=5)  # 25 for keys, 20 before they are few


class Keys:
    """Keys that open connections, ask over them, and are answered."""

    def __init__(self, limits: Limits = FEW) -> None:
        self.connections = Connections(limits)
        self.served: dict[str, list[Connection]] = {}
        self.now = 0.0

    def ask(self, key: str, standing: Standing = Standing.KEY) -> Refusal | None:
        self.now += 1
        connection = Connection("10.0.0.1", self.now, counted=False)
        yielding = self.connections.admit(connection)
        if yielding is not None:
            assert yielding is not connection, "a new head finds a connection"
            assert all(yielding not in served for served in self.served.values()), "a served one never gives way"
        refusal, _ = self.connections.serve(connection, self.now, body=False, client=key, standing=standing)
        if refusal is None:
            self.served.setdefault(key, []).append(connection)
        else:
            self.connections.remove(connection)
        return refusal

    def as_many_as_it_may(self, key: str, standing: Standing = Standing.KEY) -> int:
        while self.ask(key, standing) is None:
            pass
        return len(self.served.get(key, ()))

    def answered(self, key: str) -> None:
        self.now += 1
        self.connections.enter(self.served[key].pop(), State.IDLE, self.now)


def test_a_key_alone_leaves_some_to_other_keys_and_to_administrators() -> None:
    keys = Keys()
    assert keys.as_many_as_it_may("one") == 20
    assert keys.ask("one") is Refusal.SHARE
    assert keys.as_many_as_it_may("two") == 5
    assert keys.ask("two") is Refusal.ALL
    assert keys.as_many_as_it_may("root", Standing.ADMINISTRATOR) == 3
    assert keys.ask("agent", Standing.AGENT) is None


def test_what_ends_goes_to_the_key_with_fewer_until_both_have_their_equal_part() -> None:
    keys = Keys()
    keys.as_many_as_it_may("one")
    for _ in range(20):
        keys.ask("two")
        keys.answered("one")
        assert keys.ask("one") is not None or len(keys.served["one"]) <= len(keys.served["two"])
    held = len(keys.served["one"]), len(keys.served["two"])
    assert abs(held[0] - held[1]) <= 2
    assert sum(held) >= 20


def test_a_key_alone_has_its_part_however_many_agents_there_are() -> None:
    keys = Keys()
    for _ in range(22):
        assert keys.ask("agent", Standing.AGENT) is None
    assert keys.ask("one") is None, "the first one of a key"
    assert keys.ask("one") is Refusal.SHARE
    assert keys.ask("two") is None


def test_requests_that_are_not_served_give_way_on_connections_that_once_were() -> None:
    """A key makes all connections known, and then asks for nothing over them that a key is needed for."""
    connections = Connections(FEW)
    mine = [opened(connections, "10.0.0.1", 0.0, counted=False) for _ in range(32)]
    for at, connection in enumerate(mine):
        serve(connections, connection, at)
        connections.enter(connection, State.IDLE, at)
    for connection in mine:
        connections.enter(connection, State.BUSY, 40.0)
    root = Connection("10.0.0.2", 41.0)
    assert connections.admit(root) is mine[0]
    assert connections.serve(root, 41.0, body=False, client="root", standing=Standing.ADMINISTRATOR) == (None, None)


def test_a_refused_request_gives_way() -> None:
    keys = Keys()
    connections = keys.connections
    mine = [opened(connections, "10.0.0.1", 0.0, counted=False) for _ in range(32)]
    for connection in mine:
        serve(connections, connection, 0.5)
        connections.enter(connection, State.IDLE, 1.0)
    keys.now = 2.0
    refused = [
        one
        for one in mine
        if connections.serve(one, 2.0, body=True, client="one", standing=Standing.KEY)[0] is not None
    ]
    assert len(refused) == 30, "two incomplete bodies"
    assert keys.ask("root", Standing.ADMINISTRATOR) is None


@given(st.lists(st.tuples(st.sampled_from(("one", "two", "three", "root")), st.booleans()), max_size=150))
def test_whatever_keys_ask_no_key_and_no_administrator_is_shut_out(steps: list[tuple[str, bool]]) -> None:
    keys = Keys()
    for key, asks in steps:
        root = key == "root"
        before = {name: len(served) for name, served in keys.served.items() if served and name != "root"}
        if not asks:
            if keys.served.get(key):
                keys.answered(key)
            continue
        refusal = keys.ask(key, Standing.ADMINISTRATOR if root else Standing.KEY)
        if root:
            assert refusal is None or len(keys.served.get("root", ())) >= 3
        elif refusal is Refusal.SHARE:
            assert before[key] * len(before) >= sum(before.values()), "it has its equal part"
        elif refusal is Refusal.ALL:
            assert sum(before.values()) + len(keys.served.get("root", ())) >= 25


class Asking:
    """A connection at an admission."""

    def __init__(self, record: Connection) -> None:
        self.record = record

    def shut(self, *, late_head: bool) -> None:
        """It stays."""


async def test_no_request_ends_for_one_that_is_refused_all_the_same() -> None:
    ended = list[str]()

    def end(client: str) -> bool:
        ended.append(client)
        return True

    admission = ConnectionAdmission(limits(64, for_fewer=32), name="test", make_way=end)

    def ask(client: str) -> Refusal | None:
        asking = Asking(Connection("10.0.0.1", 0.0))
        assert admission.admit(asking)
        decided = admission.connections.serve(asking.record, 0.0, False, client)
        return admission.settle(asking.record, False, client, Standing.KEY, decided)

    for client, number in {"few": 1, "middle": 13, "most": 18}.items():
        assert {ask(client) for _ in range(number)} == {None}
    assert (ask("middle"), ended) == (Refusal.SHARE, [])
    assert (ask("few"), ended) == (None, ["most"])
