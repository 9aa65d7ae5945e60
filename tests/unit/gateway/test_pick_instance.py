"""The instance for a request: fewest in flight first, in turn among equals, each once."""

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heappop, heappush

import pytest

from controller.live.endpoints import Endpoint
from gateway.routing.routing_table import RoutingTable
from gateway.routing.session_home import SessionHomes, home_of
from support.builders.models import endpoint, model, models


def endpoints(model: str, *instances: str) -> list[Endpoint]:
    return [Endpoint(model, instance, "127.0.0.1:1", "s") for instance in instances]


def table(*instances: str) -> RoutingTable:
    made = RoutingTable()
    made.update(models("m", "idle"), endpoints("m", *instances))
    return made


def chosen(made: RoutingTable, tried: tuple[str, ...] = ()) -> str | None:
    endpoint = made.pick("m", tried)
    return endpoint.instance if endpoint else None


def test_equally_busy_instances_take_turns() -> None:
    made = table("a", "b", "c")
    assert [chosen(made) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_the_least_busy_instance_is_picked() -> None:
    made = table("a", "b")
    (busy,) = endpoints("m", "a")
    for _ in range(3):
        made.enter(busy)
    assert [chosen(made) for _ in range(3)] == ["b", "b", "b"]
    for _ in range(3):
        made.leave(busy)
    assert {chosen(made), chosen(made)} == {"a", "b"}, "ended requests no longer count"


def test_requests_of_other_gateways_count_for_a_while() -> None:
    now = [10.0]
    made = RoutingTable(lambda: now[0])
    made.update(models("m"), endpoints("m", "a", "b"))
    (busy,) = endpoints("m", "a")
    made.enter(busy)
    made.reported(busy, 3)
    made.leave(busy)
    assert [chosen(made) for _ in range(3)] == ["b", "b", "b"], "two of them are others'"
    now[0] += 2.0
    assert {chosen(made), chosen(made)} == {"a", "b"}, "an old count says nothing"
    made.reported(busy, 0)
    assert {chosen(made), chosen(made)} == {"a", "b"}


def test_each_instance_is_tried_once() -> None:
    made = table("a", "b")
    assert chosen(made, ("a",)) == "b"
    assert chosen(made, ("a", "b")) is None


def test_a_known_model_may_have_no_instance() -> None:
    made = table("a")
    assert made.runs("m")
    assert not made.runs("idle")
    assert made.knows("idle")
    assert made.pick("idle") is None
    assert not made.knows("other")


def test_an_update_keeps_requests_in_flight() -> None:
    made = table("a", "b")
    (busy,) = endpoints("m", "a")
    made.enter(busy)
    made.update(models("m"), endpoints("m", "a", "b"))
    assert [chosen(made), chosen(made)] == ["b", "b"]
    made.update(models("m"), endpoints("m", "b"))
    assert chosen(made) == "b"
    made.leave(busy)
    made.update(models("m"), endpoints("m", "a", "b"))
    assert chosen(made) == "a"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def suspects(*instances: str) -> tuple[RoutingTable, Clock]:
    clock = Clock()
    made = RoutingTable(clock)
    made.update(models("m"), endpoints("m", *instances))
    return made, clock


def refuse(made: RoutingTable, instance: str) -> None:
    made.refused(endpoints("m", instance)[0])


def test_a_refusing_instance_is_tried_after_1_2_4_to_30_seconds() -> None:
    made, clock = suspects("a", "b")
    refuse(made, "a")
    waits = []
    for _ in range(8):
        began = clock.now
        while chosen(made) != "a":
            clock.now += 0.5
        refuse(made, "a")
        waits.append(clock.now - began)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_refusals_under_way_at_once_count_once() -> None:
    made, clock = suspects("a", "b")
    for _ in range(50):
        refuse(made, "a")
    clock.now += 1.0
    assert "a" in {chosen(made), chosen(made)}


def test_one_request_tries_a_suspect_and_an_answer_ends_the_suspicion() -> None:
    made, clock = suspects("a", "b")
    refuse(made, "a")
    clock.now += 1.0
    assert [chosen(made) for _ in range(4)].count("a") == 1
    made.answered(endpoints("m", "a")[0])
    assert {chosen(made), chosen(made)} == {"a", "b"}


def test_where_all_refuse_the_one_that_waits_least_is_tried_once() -> None:
    made, clock = suspects("a", "b")
    refuse(made, "a")
    clock.now += 0.5
    refuse(made, "b")
    assert chosen(made) == "a"
    assert chosen(made, ("a",)) is None


def test_a_suspect_that_left_the_table_comes_back_without_suspicion() -> None:
    made, _ = suspects("a", "b")
    refuse(made, "a")
    made.update(models("m"), endpoints("m", "b"))
    made.update(models("m"), endpoints("m", "a", "b"))
    assert {chosen(made), chosen(made)} == {"a", "b"}


def many(count: int, *, most: int = 256) -> list[Endpoint]:
    return [endpoint(f"m-{n}", most=most) for n in range(count)]


def home(made: RoutingTable, session: bytes) -> str | None:
    found = made.pick("m", session=session)
    return found.instance if found else None


def test_g26_a_session_has_one_home_at_every_gateway_while_that_can_take_it() -> None:
    one, other = RoutingTable(), RoutingTable()
    one.update(models("m"), many(8, most=2))
    other.update(models("m"), reversed(many(8, most=2)))
    sessions = [b"s-%d" % n for n in range(400)]
    homes = {session: home(one, session) for session in sessions}
    assert homes == {session: home(other, session) for session in sessions}
    counts = [list(homes.values()).count(f"m-{n}") for n in range(8)]
    assert min(counts) > 25, "50 each"
    (at_limit,) = (e for e in many(8) if e.instance == homes[b"s-0"])
    for _ in range(2):
        one.enter(at_limit)
    elsewhere = {home(one, b"s-0") for _ in range(7)}
    assert len(elsewhere) == 7, "the least busy of the others, in turn"
    assert at_limit.instance not in elsewhere
    one.leave(at_limit)
    assert home(one, b"s-0") == at_limit.instance
    one.refused(at_limit)
    assert home(one, b"s-0") != at_limit.instance, "it is left alone for a while"
    assert one.pick("m", [homes[b"s-1"] or ""], session=b"s-1") is not None


def test_g26_few_homes_move_when_replicas_come_and_go() -> None:
    sessions = [b"s-%d" % n for n in range(1000)]

    def homes(endpoints: list[Endpoint]) -> dict[bytes, str | None]:
        made = RoutingTable()
        made.update(models("m"), endpoints)
        return {session: home(made, session) for session in sessions}

    ten, nine, eleven = homes(many(10)), homes(many(9)), homes(many(11))
    moved = [session for session in sessions if ten[session] != nine[session]]
    assert {ten[session] for session in moved} == {"m-9"}, "only those of the replica that has gone"
    moved = [session for session in sessions if ten[session] != eleven[session]]
    assert {eleven[session] for session in moved} == {"m-10"}
    assert 50 < len(moved) < 140, "91 of 1,000"


def test_g22_equal_requests_are_spread_equally() -> None:
    """300 requests at concurrency 30: 100 each, and never more than 11 at one."""
    made = RoutingTable()
    made.update(models("m"), many(3))
    picked, in_flight, most = Counter[str](), deque[Endpoint](), 0
    for _ in range(300):
        if len(in_flight) == 30:
            made.leave(in_flight.popleft())
        chosen = made.pick("m")
        assert chosen is not None
        made.enter(chosen)
        in_flight.append(chosen)
        picked[chosen.instance] += 1
        most = max(most, *(made.in_flight(f"m-{n}") for n in range(3)))
    assert all(97 <= count <= 103 for count in picked.values())
    assert most <= 11


def test_g22_a_slow_replica_gets_fewer_requests() -> None:
    """One is three times as slow: it gets 14 +- 4 % of them."""
    made = RoutingTable()
    made.update(models("m"), many(3))
    picked, ends, now = Counter[str](), list[tuple[float, int, Endpoint]](), 0.0
    for n in range(3000):
        while len(ends) >= 30:
            now, _, ended = heappop(ends)
            made.leave(ended)
        chosen = made.pick("m")
        assert chosen is not None
        made.enter(chosen)
        picked[chosen.instance] += 1
        heappush(ends, (now + (3.0 if chosen.instance == "m-0" else 1.0), n, chosen))
    assert 0.10 <= picked["m-0"] / 3000 <= 0.18


def test_of_many_replicas_two_are_drawn() -> None:
    draws = iter([0.0, 0.5, 0.0, 0.5, 0.999, 0.999])
    made = RoutingTable(chance=lambda: next(draws))
    made.update(models("m"), many(100, most=1))
    assert home(made, b"") == "m-0"
    made.enter(many(1)[0])
    assert home(made, b"") == "m-50", "the other one is at its limit"
    made.enter(many(100)[99])
    found = home(made, b"")
    assert found == "m-1", "neither can take it, so all are looked at: the least recently picked"


def test_two_drawn_of_many_replicas_spread_requests() -> None:
    chance = random.Random(7)  # noqa: S311 - of no secret
    made = RoutingTable(chance=chance.random)
    made.update(models("m"), many(100))
    for _ in range(1000):
        chosen = made.pick("m")
        assert chosen is not None
        made.enter(chosen)
    assert max(made.in_flight(f"m-{n}") for n in range(100)) <= 15, "10 each"


def test_adapters_belong_to_their_deployment_and_to_replicas_that_have_loaded_them() -> None:
    made = RoutingTable()
    known = {"m": model("m", serving={"adapters": {"a": "path:/a", "b": "path:/b"}, "aliases": ["n"]})}
    old, new = endpoint("m-1"), replace(endpoint("m-2"), adapters={"a": "a"})
    made.update(known, [old, new])
    assert [made.name_of(name) for name in ("m", "n", "a", "b", "c")] == ["m", "m", "m", "m", "c"]
    assert [made.is_adapter(name) for name in ("m", "n", "a", "c")] == [False, False, True, False]
    assert [made.pick("m", adapter="a") for _ in range(3)] == [new] * 3
    assert made.pick("m", adapter="b") is None
    assert (made.runs("m", "a"), made.runs("m", "b")) == (True, False)
    served = made.served_models()
    assert {name: (one.state, one.adapter_of) for name, one in served.items()} == {
        "m": ("running", ""),
        "n": ("running", ""),
        "a": ("running", "m"),
        "b": ("waking", "m"),
    }
    assert list(made.served_models(lambda name: name == "a")) == ["a"]


def test_requests_at_each_replica_are_told_by_deployment() -> None:
    table = RoutingTable()
    a, b = endpoint("a"), endpoint("b")
    table.update({"m": model("m")}, [a, b])
    for one in (a, a):
        table.enter(one)
    assert table.at_replicas() == {model("m").uid: {"a": 2}}
    table.update({"m": model("m")}, [b])
    assert table.at_replicas() == {}, "a replica that stops is none of those from which one is chosen"


def test_g26_the_home_of_a_session_that_comes_again_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the table was read again. It is worked out anew once other replicas run."""
    asked: list[bytes] = []

    def noted(session: bytes, endpoints: Iterable[Endpoint]) -> Endpoint | None:
        asked.append(session)
        return home_of(session, endpoints)

    monkeypatch.setattr("gateway.routing.session_home.home_of", noted)
    made = RoutingTable()
    made.update(models("m"), many(8))
    first = home(made, b"s")
    made.update(models("m"), reversed(many(8, most=2)))
    found = made.pick("m", session=b"s")
    assert found is not None
    assert (found.instance, found.max_in_flight) == (first, 2), "the replica as it was read last"
    assert asked == [b"s"]
    made.update(models("m"), [one for one in many(8) if one.instance != first])
    assert home(made, b"s") not in (first, None)
    made.update(models("m"), many(8))
    assert home(made, b"s") == first
    assert asked == [b"s"] * 3


def test_homes_of_the_latest_sessions_alone_are_kept() -> None:
    homes = SessionHomes(many(2))
    for n in range(10_000):
        homes.of(b"s-%d" % n)
    homes.of(b"s" * 100_000)
    assert len(homes._kept) <= 4096
    assert max(map(len, homes._kept)) < 1000
    assert SessionHomes([]).of(b"s") is None
