"""Which requests wait, which goes next, which end, and which models shall wake."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.queue_places import Holder, lease_places
from controller.live.endpoints import RolloutRoute
from gateway.errors import GatewayError
from gateway.queueing.queue_leases import QueueLeases
from gateway.queueing.queues import Queues
from support.builders.models import endpoint, model
from support.standins.queues_world import World


@pytest.fixture
def world() -> World:
    return World()


SLEEPY = model("m", may_sleep=True, wanted=0)


def test_g24_the_limit_then_the_queue_then_the_refusal(world: World) -> None:
    world.route(model("m", serving={"queue": {"length": 4}}), [endpoint("a", most=16), endpoint("b", most=16)])
    for n in range(40):
        world.come(f"r{n}")
    states = list(world.states().values())
    counts = {state: states.count(state) for state in set(states)}
    assert counts == {"a": 16, "b": 16, "waits": 4, "queue_full": 4}
    assert world.requests[-1].error.headers["Retry-After"] == "60"
    world.requests[0].end()
    assert world.states()["r32"] in ("a", "b")
    assert world.come("late").state == "waits"


def test_g24_what_waits_at_other_gateways_counts(world: World) -> None:
    """A request may wait until the others have said what they hold; where they hold the rest, it is refused."""
    asked: list[float] = []
    places: QueueLeases[Any] = QueueLeases(lambda: world.now, lambda: asked.append(world.now))
    world.queues = Queues(world.table, world.demand, lambda: world.now, places=places)
    known = model("m", serving={"queue": {"length": 4}})
    world.route(known, [endpoint("a", most=1)])
    world.come("running")
    waiting = [world.come(f"r{n}") for n in range(2)]
    assert (len(asked), world.states()["r1"]) == (2, "waits")
    world.now += 0.001
    grants = [lease_places(ask, {"q": Holder(held=3, need=3)}) for ask in places.asks()]
    for uid, request in places.granted(grants, world.now):
        world.queues.refuse(uid, request)
    assert [one.state for one in waiting] == ["waits", "queue_full"]
    assert "4 requests wait" in str(waiting[1].error)
    assert world.come("at once").state == "queue_full", "what was said a moment ago holds"
    world.now += 1.0
    assert world.come("later").state == "waits", "until the others have been asked again"


def test_g24_a_slow_store_refuses_no_request_that_it_was_not_asked_for(world: World) -> None:
    places: QueueLeases[str] = QueueLeases(lambda: world.now, lambda: None)
    places.join("m", "early", 1)
    places.leave("m", "early")
    places.join("m", "gone", 2)
    asks, asked_at = places.asks(), world.now
    places.leave("m", "gone")
    world.now += 0.1
    places.join("m", "late", 2)
    places.join("m", "last", 2)
    world.now += 2.0
    others = {"q": Holder(held=1, need=1)}
    assert places.granted([lease_places(ask, others) for ask in asks], asked_at) == []
    refused = places.granted([lease_places(ask, others) for ask in places.asks()], world.now)
    assert refused == [("m", "last")], "one place is left"


def test_a_new_request_does_not_overtake_those_that_wait(world: World) -> None:
    known = model("m")
    world.route(known, [endpoint("a", most=1)])
    world.come("first")
    second = world.come("second")
    world.table.update({"m": known}, [endpoint("a", most=1), endpoint("b", most=1)])
    third = world.come("third")
    assert (second.state, third.state) == ("waits", "waits")
    world.queues.pump_all()
    assert (second.state, third.state) == ("b", "waits")


def test_g24_the_key_with_fewest_in_flight_goes_first(world: World) -> None:
    world.route(model("m"), [endpoint("a", most=2)])
    first, _ = world.come("1", key="greedy"), world.come("2", key="greedy")
    waiting = [world.come("3", key="greedy"), world.come("4", key="modest")]
    first.end()
    assert [one.state for one in waiting] == ["waits", "a"]


def test_g56_what_waits_for_one_revision_does_not_hold_up_the_others(world: World) -> None:
    """Sessions of the new revision wait for it, in order, while the old one has free replicas."""
    known = replace(model("m", serving={"queue": {"length": 4}}), rollout=RolloutRoute("2", 1, 50))
    old, new = endpoint("old", most=2), replace(endpoint("new", most=1), revision="2")
    world.route(known, [old, new])
    first, *waiting = [world.come(f"new-{n}", lane="new") for n in range(3)]
    assert [one.state for one in (first, *waiting)] == ["new", "waits", "waits"]
    assert [world.come("any").state, world.come("of-old", lane="old").state] == ["old", "old"]
    last = world.come("any-2")
    assert last.state == "waits", "the old one is at its limit, too"
    assert [one.state for one in (world.come("full-1"), world.come("full-2"))] == ["waits", "queue_full"]
    world.requests[3].end()
    assert (last.state, [one.state for one in waiting]) == ("old", ["waits", "waits"]), "it overtakes them"
    first.end()
    assert [one.state for one in waiting] == ["new", "waits"]
    world.route(replace(known, rollout=RolloutRoute("2", 1, 50)), [old])
    world.requests[4].end()
    assert waiting[1].state == "old", "no replica of its own revision runs any more"


def test_g26_g56_without_a_queue_a_session_moves_within_its_revision_alone(world: World) -> None:
    """No other replica is free that may take it: that is all that is refused."""
    known = model("m", serving={"queue": {"length": 0}})
    one, two = endpoint("one", most=1), endpoint("two", most=1)
    world.route(known, [one, two])
    picked = [world.table.pick("m", session=b"s")]
    world.table.enter(picked[0] or one)
    picked.append(world.table.pick("m", session=b"s"))
    assert {found and found.instance for found in picked} == {"one", "two"}, "its home is at the limit: least load"
    world.table.leave(picked[0] or one)

    world.route(replace(known, rollout=RolloutRoute("2", 1, 50)), [one, replace(two, revision="2")])
    states = [world.come(f"r{n}", lane="new").state for n in range(2)]
    assert states == ["two", "queue_full"], "one session id stays on one revision"
    assert [world.come("any").state, world.come("last").state] == ["one", "queue_full"]


def test_a_request_that_finds_no_replica_after_all_keeps_its_place(world: World) -> None:
    """What applies for a place meanwhile does not get it."""
    places: QueueLeases[Any] = QueueLeases(lambda: world.now, lambda: None)
    world.queues = Queues(world.table, world.demand, lambda: world.now, places=places)
    known = replace(model("m", serving={"queue": {"length": 1}}), rollout=RolloutRoute("2", 1, 50))
    new = replace(endpoint("new", most=1), revision="2")
    world.route(known, [endpoint("old", most=1), new])
    world.come("running", lane="new")
    bound = world.come("bound", lane="new")
    places.granted([lease_places(ask, {}) for ask in places.asks()], world.now)
    world.queues.pump_all()
    assert bound.state == "waits"
    assert world.come("next", lane="new").state == "queue_full"


def test_what_waits_wakes_and_is_refused_is_counted(world: World) -> None:
    world.route(model("m", may_sleep=True, wanted=0, serving={"queue": {"length": 2}}))
    for n in range(3):
        world.come(f"r{n}")
    world.queues.note_refusal("m", world.requests[2].error)
    for name in ("made-up-1", "made-up-2"):
        world.queues.note_refusal(name, GatewayError(404, "model_not_found", ""))
    world.queues.note_refusal("m", GatewayError(502, "engine_died", ""))
    assert world.sample("requests_waiting", deployment="m") == 2
    assert world.sample("wakes_total", deployment="m") == 1
    assert world.sample("refusals_total", deployment="m", code="queue_full") == 1
    assert world.sample("refusals_total", deployment="", code="model_not_found") == 2, "clients make no series"
    assert world.sample("refusals_total", deployment="m", code="engine_died") is None
    world.now += 4
    world.route(model("m", may_sleep=True, wanted=1), [endpoint("a")])
    assert world.sample("requests_waiting", deployment="m") == 0
    assert world.sample("waited_seconds_count", deployment="m") == 2
    assert 8 <= (world.sample("waited_seconds_sum", deployment="m") or 0) < 8.2
    world.queues.note_cancel("m", "waiting")
    assert world.sample("cancels_total", deployment="m", state="waiting") == 1
    world.table.update({}, [])
    world.queues.routes_changed()
    assert world.sample("requests_waiting", deployment="m") is None, "its series ends with it"
    assert world.sample("cancels_total", deployment="m", state="waiting") == 1
    world.now += 3601
    world.queues.routes_changed()
    left = {tuple(one.labels.items()) for family in world.registry.collect() for one in family.samples}
    assert {labels[0] for labels in left if labels} == {("deployment", "")}, "the others end after an hour"


def test_nothing_is_kept_of_models_that_are_gone(world: World) -> None:
    for n in range(3):
        name = f"m-{n}"
        world.table.update({name: model(name)}, [replace(endpoint("a"), model=name)])
        world.queues.routes_changed()
        uid = model(name).uid
        world.demand.entered(uid, name, "k", world.now)
        world.demand.left(uid, name, "k", world.now)
    assert set(world.demand._ends) == set(world.demand.in_flight) == {"m-2"}
    world.demand.entered(uid, "m-2", "k", world.now)
    world.table.update({}, [])
    world.queues.routes_changed()
    world.demand.left(uid, "m-2", "k", world.now)
    world.queues.routes_changed()
    assert world.demand._ends == world.demand.in_flight == {}


def test_all_counts_are_zero_in_the_end(world: World) -> None:
    world.route(model("m"), [endpoint("a", most=2)])
    requests = [world.come(f"r{n}") for n in range(9)]
    requests[5].leave()
    for request in requests:
        if request.at is not None:
            request.end()
    for _ in range(9):
        for request in requests:
            if request.state == "a":
                request.end()
    assert set(world.states().values()) == {"done", "left"}
    load = world.demand.report(world.now + 1)["uid-m"]
    assert (load.in_flight, load.waiting, load.arrived) == (0, 0, 9)


def test_a_key_that_fills_a_queue_gives_places_up_to_others(world: World) -> None:
    world.route(model("m", serving={"queue": {"length": 6}}), [endpoint("a", most=1)])
    world.come("running", "greedy")
    for n in range(6):
        world.come(f"g{n}", "greedy")
    assert world.come("g6", "greedy").state == "queue_full"
    for n in range(3):
        assert world.come(f"o{n}", f"other-{n}").state == "waits"
    states = world.states()
    assert [states[f"g{n}"] for n in range(6)] == ["waits"] * 3 + ["queue_full"] * 3, "its newest ones end"
    assert [world.come(f"p{n}", "other-0").state for n in range(2)] == ["waits", "queue_full"]
    assert sum(state == "waits" for state in world.states().values()) == 6


def test_a_place_is_given_up_too_where_the_queue_is_full_over_all_gateways(world: World) -> None:
    places: QueueLeases[Any] = QueueLeases(lambda: world.now, lambda: None)
    world.queues = Queues(world.table, world.demand, lambda: world.now, places=places)
    world.route(model("m", serving={"queue": {"length": 4}}), [endpoint("a", most=1)])
    world.come("running", "greedy")

    def decide() -> None:
        world.now += 1.0
        grants = [lease_places(ask, {"q": Holder(held=2, need=2)}) for ask in places.asks()]
        for uid, request in places.granted(grants, world.now):
            world.queues.refuse(uid, request)

    greedy = [world.come(f"g{n}", "greedy") for n in range(2)]
    decide()
    assert [one.state for one in greedy] == ["waits", "waits"]
    other = world.come("other", "other")
    decide()
    assert [one.state for one in (*greedy, other)] == ["waits", "queue_full", "waits"]
    assert places.has(world.queues._uids["m"], other)
