"""Models that sleep, are stopped or are gone while requests wait for them."""

from typing import Any

import pytest

from controller.live.endpoints import Stopped, Trouble
from support.builders.models import endpoint, model
from support.standins.queues_world import World


@pytest.fixture
def world() -> World:
    return World()


SLEEPY = model("m", may_sleep=True, wanted=0)


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
