"""The instance for a request: fewest in flight first, in turn among equals, each once."""

from controller.live.endpoints import Endpoint
from gateway.pick_instance import RoutingTable
from support.builders.models import models


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
    made.told(busy, 3)
    made.leave(busy)
    assert [chosen(made) for _ in range(3)] == ["b", "b", "b"], "two of them are others'"
    now[0] += 2.0
    assert {chosen(made), chosen(made)} == {"a", "b"}, "an old count says nothing"
    made.told(busy, 0)
    assert {chosen(made), chosen(made)} == {"a", "b"}


def test_each_instance_is_tried_once() -> None:
    made = table("a", "b")
    assert chosen(made, ("a",)) == "b"
    assert chosen(made, ("a", "b")) is None


def test_a_known_model_may_have_no_instance() -> None:
    made = table("a")
    assert made.running_models() == ["m"]
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
