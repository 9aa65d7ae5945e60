"""The instance for a request: fewest in flight first, in turn among equals, each once."""

from contextlib import ExitStack

from controller.api.gateway.endpoints import Endpoint
from controller.api.gateway.pick_instance import RoutingTable


def endpoints(model: str, *instances: str) -> list[Endpoint]:
    return [Endpoint(model, instance, "127.0.0.1:1", "s") for instance in instances]


def table(*instances: str) -> RoutingTable:
    made = RoutingTable()
    made.update(frozenset({"m", "idle"}), endpoints("m", *instances))
    return made


def chosen(made: RoutingTable, tried: tuple[str, ...] = ()) -> str | None:
    endpoint = made.pick("m", tried)
    return endpoint.instance if endpoint else None


def test_equally_busy_instances_take_turns() -> None:
    made = table("a", "b", "c")
    assert [chosen(made) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_the_least_busy_instance_is_picked() -> None:
    made = table("a", "b")
    with ExitStack() as busy:
        for _ in range(3):
            busy.enter_context(made.counted(endpoints("m", "a")[0]))
        assert [chosen(made) for _ in range(3)] == ["b", "b", "b"]
    assert {chosen(made), chosen(made)} == {"a", "b"}, "ended requests no longer count"


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
    with made.counted(endpoints("m", "a")[0]):
        made.update(frozenset({"m"}), endpoints("m", "a", "b"))
        assert [chosen(made), chosen(made)] == ["b", "b"]
        made.update(frozenset({"m"}), endpoints("m", "b"))
        assert chosen(made) == "b"
    made.update(frozenset({"m"}), endpoints("m", "a", "b"))
    assert chosen(made) == "a"
