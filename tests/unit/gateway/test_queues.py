"""Which requests wait, which goes next, which end, and which models shall wake."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from controller.domain.queue_places import Holder, lease_places
from controller.live.endpoints import Endpoint, Model, RolloutRoute, Stopped, Trouble
from gateway.demand import Demand
from gateway.errors import GatewayError
from gateway.pick_instance import RoutingTable
from gateway.queue_metrics import QueueMetrics
from gateway.queue_places import QueuePlaces
from gateway.queues import Queues
from support.builders.models import endpoint, model


@dataclass
class World:
    """A gateway without connections: requests take the replica that the table gives them."""

    now: float = 100.0
    woken: int = 0
    requests: "list[Request]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = RoutingTable(lambda: self.now)
        self.demand = Demand(self.now)
        self.registry = CollectorRegistry()
        self.queues = Queues(
            self.table, self.demand, lambda: self.now, woken=self._note, metrics=QueueMetrics(self.registry)
        )

    def _note(self) -> None:
        self.woken += 1

    def route(self, known: Model, endpoints: Iterable[Endpoint] = (), **stopped: Stopped) -> None:
        self.table.update({"m": known}, endpoints, stopped)
        self.queues.routes_changed()

    def come(self, name: str, key: str = "k", **fields: Any) -> "Request":
        self.now += 0.01
        request = Request(self, name, key, arrived=self.now, **fields)
        self.requests.append(request)
        self.queues.arrived("m")
        request.go()
        return request

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"gpuward_gateway_{name}", labels)

    def states(self) -> dict[str, str]:
        return {request.request_id: request.state for request in self.requests}


@dataclass(eq=False)
class Request:
    world: World
    request_id: str
    key: str
    arrived: float
    role: str = "inference"
    lane: str = ""
    state: str = ""
    at: Endpoint | None = None
    uid: str = ""

    def go(self) -> None:
        world = self.world
        place = {"": None, "new": 0.0, "old": 1.0}[self.lane]
        lane = world.table.lane("m", b"session", place) if self.lane else ""
        waits = world.queues.must_wait("m", lane)
        self.at = None if waits else world.table.pick("m", place=place, bound=bool(lane))
        if self.at is not None:
            self.state = self.at.instance
            world.table.enter(self.at)
            self.uid = world.queues.entered("m", self.key)
        elif (error := world.queues.join(self, "m", [], lane)) is not None:
            self.fail(error)
        else:
            self.state = "waits"

    def fail(self, error: GatewayError) -> None:
        self.world.queues.leave(self, "m", refused=True)
        self.state = error.code
        self.error = error

    def end(self) -> None:
        assert self.at is not None
        self.world.table.leave(self.at)
        self.state = "done"
        self.world.queues.left("m", self.key, self.uid)

    def leave(self) -> None:
        self.world.queues.leave(self, "m", refused=False)
        self.state = "left"


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
    places: QueuePlaces[Any] = QueuePlaces(lambda: world.now, lambda: asked.append(world.now))
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
    places: QueuePlaces[str] = QueuePlaces(lambda: world.now, lambda: None)
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
    places: QueuePlaces[Any] = QueuePlaces(lambda: world.now, lambda: None)
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


def test_g27_many_requests_wake_a_model_once(world: World) -> None:
    world.route(SLEEPY)
    for n in range(50):
        world.come(f"r{n}")
    assert set(world.states().values()) == {"waits"}
    assert (world.woken, world.queues.wakes()) == (1, {SLEEPY.uid: "r0"})
    world.route(model("m", may_sleep=True, wanted=1), [endpoint("a")])
    assert set(world.states().values()) == {"a"}
    assert world.queues.wakes() == {}
    assert world.queues.take_withdrawn() == {SLEEPY.uid}, "the demand speaks for itself now"


def test_g29_a_wake_is_withdrawn_when_all_clients_have_left(world: World) -> None:
    world.route(SLEEPY)
    requests = [world.come(f"r{n}") for n in range(3)]
    requests[0].leave()
    requests[1].leave()
    assert world.queues.take_withdrawn() == set()
    requests[2].leave()
    assert world.queues.take_withdrawn() == {SLEEPY.uid}
    assert world.demand.waiting(SLEEPY.uid) == 0
    assert world.sample("wakes_withdrawn_total", deployment="m") == 1
    world.come("served")
    world.route(model("m", may_sleep=True, wanted=1), [endpoint("a")])
    assert world.sample("wakes_withdrawn_total", deployment="m") == 1, "nothing was given up"


@pytest.mark.parametrize(
    ("trouble", "role", "why"),
    [
        (Trouble("no_capacity", "8 need_gt_free"), "operator", {"why": "8 need_gt_free"}),
        (Trouble("no_capacity", "8 need_gt_free"), "inference", {}),
        (Trouble("start_failed", "exit 1", 40.0), "admin", {"why": "exit 1"}),
    ],
)
def test_g31_all_that_wait_end_when_the_model_cannot_run(world: World, trouble: Trouble, role: str, why: Any) -> None:
    world.route(SLEEPY)
    requests = [world.come(f"r{n}", role=role) for n in range(3)]
    world.route(model("m", may_sleep=True, wanted=1, trouble=trouble))
    assert {one.state for one in requests} == {trouble.code}
    assert requests[0].error.details == why
    assert requests[0].error.headers["Retry-After"] == ("40" if trouble.again_in_s else "1")
    assert world.queues.take_withdrawn() == set(), "the wish to run stays for a while"
    assert world.come("next", role=role).state == trouble.code, "not before the next attempt"


def test_g31_requests_that_are_refused_prolong_the_wish_to_run(world: World) -> None:
    """Once each 20 s, whatever comes: the model keeps its place in the queue of pending instances."""
    world.route(model("m", may_sleep=True, wanted=1, trouble=Trouble("no_capacity", "")))
    asked: list[tuple[float, dict[str, str]]] = []
    began = world.now
    while world.now < began + 90:
        world.come(f"r{len(world.requests)}")
        world.now += 0.5
        if taken := world.queues.take_refused():
            asked.append((world.now - began, taken))
    assert len(asked) == 5
    assert asked[0][1] == {SLEEPY.uid: "r0"}
    assert world.woken == 5, "the reporter is woken for these alone"
    assert world.queues.wakes() == {}


@pytest.mark.parametrize("fields", [{"may_sleep": False}, {"may_sleep": True}])
def test_a_fixed_number_of_replicas_needs_no_wish(world: World, fields: dict[str, bool]) -> None:
    world.route(model("m", wanted=1, trouble=Trouble("start_failed", ""), **fields))
    world.come("r")
    assert bool(world.queues.take_refused()) is fields["may_sleep"]


def test_without_a_queue_a_sleeping_model_wakes_for_the_clients_that_come_again(world: World) -> None:
    world.route(model("m", may_sleep=True, wanted=0, serving={"queue": {"length": 0}}))
    assert world.come("r").state == "model_not_running"
    assert world.queues.take_refused() == {SLEEPY.uid: "r"}
    world.route(model("m", may_sleep=True, wanted=1, serving={"queue": {"length": 0}}), [endpoint("a", most=1)])
    assert world.come("next").state == "a"
    assert world.come("one more").state == "queue_full"
    assert world.queues.take_refused() == {}


def test_g35_a_stopped_model_is_refused_and_wakes_nothing(world: World) -> None:
    world.route(SLEEPY)
    waiting = world.come("waiting")
    world.route(model("m", wanted=0), m=Stopped("user"))
    assert (waiting.state, world.come("next").state) == ("stopped", "stopped")
    assert world.woken == 1


def test_a_model_that_is_deleted_meanwhile_is_not_found(world: World) -> None:
    world.route(SLEEPY)
    waiting = world.come("waiting")
    world.table.update({}, [])
    world.queues.routes_changed()
    assert waiting.state == "model_not_found"
    assert world.queues.wakes() == {}
    assert world.demand.report(world.now + 1) == {}, "nothing is kept of it"


def test_what_waits_for_a_name_waits_for_the_deployment_that_takes_it(world: World) -> None:
    """Deleted and applied again: the new one is asked to wake, and the counts follow."""
    world.route(SLEEPY)
    waiting = [world.come("first"), world.come("second")]
    again = model("m", may_sleep=True, wanted=0, uid="uid-again")
    world.route(again)
    assert world.queues.wakes() == {"uid-again": "first"}
    assert [world.demand.waiting(uid) for uid in (SLEEPY.uid, "uid-again")] == [0, 2]
    world.route(again, [endpoint("a")])
    assert {one.state for one in waiting} == {"a"}
    assert world.queues.take_withdrawn() == {"uid-again"}
    for one in waiting:
        one.end()
    assert [world.demand.waiting(uid) for uid in (SLEEPY.uid, "uid-again")] == [0, 0]


def test_without_a_queue_a_model_that_does_not_run_is_refused_as_before(world: World) -> None:
    world.route(model("m", serving={"queue": {"length": 0}}))
    assert world.come("r").state == "model_not_running"


def test_a_command_that_takes_no_requests_is_not_waited_for(world: World) -> None:
    world.route(model("m", serves=False))
    assert world.come("r").state == "model_not_running"
    assert world.table.served_models() == {}


def test_a_model_that_falls_asleep_under_waiting_requests_is_woken(world: World) -> None:
    """Its last replica was stopping when the requests came."""
    known = model("m", may_sleep=True, wanted=1)
    world.route(known, [endpoint("a", most=1)])
    world.come("running")
    world.come("waiting")
    assert world.queues.wakes() == {}
    world.route(SLEEPY)
    assert world.queues.wakes() == {SLEEPY.uid: "waiting"}


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
        uid = world.queues.entered(name, "k")
        world.queues.left(name, "k", uid)
    assert set(world.queues._finished) == set(world.queues._in_flight) == {"m-2"}
    uid = world.queues.entered("m-2", "k")
    world.table.update({}, [])
    world.queues.routes_changed()
    world.queues.left("m-2", "k", uid)
    world.queues.routes_changed()
    assert world.queues._finished == world.queues._in_flight == {}


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
