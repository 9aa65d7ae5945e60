"""The order of waiting requests, and when a full queue has room again."""

import pytest

from gateway.queueing.demand import Demand
from gateway.queueing.fair_queue import FairQueue


def served(queue: FairQueue[str], in_flight: dict[str, int]) -> list[str]:
    """The order in which they go, each in flight from then on."""
    order = []
    while (first := queue.first(in_flight)) is not None:
        request = first.request
        order.append(request)
        queue.remove(request)
        key = request[0]
        in_flight[key] = in_flight.get(key, 0) + 1
    return order


def test_g24_the_key_with_the_fewest_in_flight_goes_first_then_the_oldest() -> None:
    queue: FairQueue[str] = FairQueue()
    for age, name in enumerate(["a1", "a2", "a3", "b1", "b2", "c1"]):
        queue.add(name, name[0], float(age))
    assert served(queue, {"a": 1}) == ["b1", "c1", "a1", "b2", "a2", "a3"]


def test_one_key_with_many_requests_does_not_hold_up_another() -> None:
    queue: FairQueue[str] = FairQueue()
    for age in range(1000):
        queue.add(f"a{age}", "a", float(age))
    queue.add("b0", "b", 1000.0)
    first = queue.first({"a": 5})
    assert first is not None
    assert first.request == "b0"


def test_a_request_that_leaves_is_not_served() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a1", "a", 0)
    queue.add("a2", "a", 1)
    assert (queue.remove("a1"), queue.remove("a1"), len(queue)) == (True, False, 1)
    assert served(queue, {}) == ["a2"]
    assert (len(queue), queue.first({})) == (0, None)


def test_a_request_that_comes_back_keeps_its_age() -> None:
    queue: FairQueue[str] = FairQueue()
    for name, arrived in (("a2", 2.0), ("a3", 3.0), ("a1", 1.0)):
        queue.add(name, "a", arrived)
    assert served(queue, {}) == ["a1", "a2", "a3"]


def end(demand: Demand, now: float) -> None:
    demand.entered("", "m", "k", now)
    demand.left("", "m", "k", now)


@pytest.mark.parametrize(
    ("ended", "waiting", "after_s"),
    [(30, 4, 4), (60, 4, 2), (300, 4, 1), (0, 4, 60), (1, 4, 60), (3000, 512, 6)],
)
def test_g24_retry_after_is_the_queue_by_the_rate_of_the_last_30_s(ended: int, waiting: int, after_s: int) -> None:
    demand = Demand(0.0)
    for n in range(ended):
        end(demand, 100.05 + 29.9 * n / ended)
    assert demand.retry_after_s("m", waiting, 130) == after_s


def test_what_ended_long_ago_says_nothing() -> None:
    demand = Demand(0.0)
    for _ in range(100):
        end(demand, 10.0)
    assert demand.retry_after_s("m", 1, 40.1) == 60


def test_g24_many_ends_are_counted_and_not_kept() -> None:
    demand = Demand(0.0)
    for n in range(100_000):
        end(demand, n / 1000)
    assert len(demand._ends["m"]) <= 31
    assert demand.retry_after_s("m", 30_000, 100.0) == 30
