"""What a finished request costs does not grow with those that wait, with their keys or with the replicas."""

import gc
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.live.endpoints import Endpoint, RolloutRoute
from gateway.queueing.fair_queue import FairQueue
from gateway.routing.routing_table import RoutingTable
from support.builders.models import endpoint, model, models
from support.standins.queues_world import World

FEW, TIMES, LIMIT = 200, 10, 4
ENDS, AT_ONCE = 100, 50


def full(replicas: int, waiting: int, key: Callable[[int], str]) -> World:
    """A model of which all replicas are at their limit, and requests that wait."""
    world = World()
    known = model("m", serving={"queue": {"length": 100_000}})
    world.route(known, [endpoint(f"r-{n}", most=1) for n in range(replicas)])
    for n in range(replicas + waiting):
        world.come(f"{n}", key(n))
    return world


def canary(waiting: int) -> World:
    """Sessions wait for the new revision, which is at its limit, while others go to the old one."""
    world = World()
    known = model("m", serving={"queue": {"length": 100_000}})
    new = replace(endpoint("new", most=1), revision="2")
    old = [endpoint(f"old-{n}", most=1) for n in range(AT_ONCE)]
    world.route(replace(known, rollout=RolloutRoute("2", 1, 50)), [*old, new])
    for n in range(waiting):
        world.come(f"new-{n}", lane="new")
    for n in range(AT_ONCE + ENDS + 1):
        world.come(f"any-{n}")
    world.requests[0].at = None  # it goes on for long
    return world


def seconds_of_ends(world: World) -> float:
    """What the ends of requests take, each of which lets another one go on."""
    took, ended = 0.0, 0
    while ended < ENDS:
        running = [one for one in world.requests if one.at is not None and one.state != "done"][:AT_ONCE]
        gc.collect()
        began = time.process_time()
        for one in running:
            one.end()
        took += time.process_time() - began
        ended += len(running)
    gone_on = sum(one.state not in ("done", "waits") for one in world.requests)
    assert gone_on >= AT_ONCE, "each replica has a request again"
    return took


SITUATIONS: dict[str, Callable[[int], World]] = {
    "waiting-of-one-key": lambda n: full(AT_ONCE, n, lambda _: "k"),
    "waiting-of-a-key-each": lambda n: full(AT_ONCE, n, str),
    "waiting-for-a-revision-at-its-limit": lambda n: canary(5 * n),
    "replicas": lambda n: full(n, FEW, lambda _: "k"),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_finished_request(situation: str) -> None:
    few, many = (min(seconds_of_ends(SITUATIONS[situation](n)) for _ in range(3)) for n in (FEW, FEW * TIMES))
    assert many < LIMIT * few, f"with {TIMES} times as many it took {many / few:.0f} times as long"


def test_a_change_of_routes_that_ends_no_request() -> None:
    def seconds(waiting: int) -> float:
        world = full(1, waiting, lambda _: "k")
        began = time.process_time()
        for _ in range(200):
            world.queues.routes_changed()
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (FEW, FEW * TIMES))
    assert many < LIMIT * few


def test_a_key_of_short_requests_beside_keys_of_long_ones() -> None:
    """Each key waits and has a long request at a replica. One key's requests end again and again."""

    def seconds(keys: int) -> float:
        queue: FairQueue[str] = FairQueue()
        in_flight = {f"k-{n}": 1 for n in range(keys)}
        for n in range(keys):
            queue.add(f"{n}", f"k-{n}", n)
        ends = 3 * keys + 200
        for n in range(ends):
            queue.add(f"short-{n}", "short", keys + n)
        began = 0.0
        for n in range(ends):
            if n == ends - 200:
                began = time.process_time()
            first = queue.first(in_flight)
            assert first is not None
            assert first.request == f"short-{n}"
            queue.remove(first.request)
            queue.fewer_in_flight("short")  # it has ended by now
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (FEW, FEW * TIMES))
    assert many < LIMIT * few


def test_a_request_that_comes_to_a_full_queue_of_many_keys() -> None:
    def seconds(keys: int) -> float:
        queue: FairQueue[str] = FairQueue()
        for n in range(keys):
            queue.add(f"{n}", f"k-{n}", n)
        queue.add("more", "k-0", keys)
        began = time.process_time()
        for _ in range(1000):
            assert queue.to_yield("new", "other", lambda _: True) == "more"
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (FEW, FEW * TIMES))
    assert many < LIMIT * few


def test_a_request_that_waits_again_in_a_long_queue() -> None:
    """It is the oldest one, and comes before all others of its key."""

    def seconds(waiting: int) -> float:
        queue: FairQueue[str] = FairQueue()
        for n in range(waiting):
            queue.add(f"{n}", "k", n)
        began = time.process_time()
        for _ in range(1000):
            assert queue.remove("0")
            queue.add("0", "k", 0)
            first = queue.first({})
            assert first is not None
            assert first.request == "0"
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (FEW, FEW * TIMES))
    assert many < LIMIT * few


def test_the_order_is_that_of_a_look_at_all_of_them() -> None:
    """Keys' requests in flight, lanes and ages at random: who goes first, and who gives up its place."""
    draw = random.Random(5)  # noqa: S311 - of no secret
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, float, str]] = {}
    in_flight: dict[str, int] = {}
    for n in range(4000):
        match draw.choice(["come", "come", "go", "leave", "end", "end"]):
            case "come":
                waiting[n] = key, arrived, lane = draw.choice("abcdef"), draw.random(), draw.choice(["", "new", "old"])
                queue.add(n, key, arrived, lane)
            case "leave" if waiting:
                gone = draw.choice(list(waiting))
                del waiting[gone]
                assert queue.remove(gone)
            case "end" if any(in_flight.values()):
                key = draw.choice([key for key, number in in_flight.items() if number])
                in_flight[key] -= 1
                queue.fewer_in_flight(key)
            case _:
                barred = draw.choice([(), ("new",), ("new", "old"), ("",)])
                free = [one for one in waiting if waiting[one][2] not in barred]
                best = min(free, key=lambda one: (in_flight.get(waiting[one][0], 0), waiting[one][1]), default=None)
                first = queue.first(in_flight, barred)
                assert (first and first.request) == best
                if best is not None:
                    key, _, _ = waiting.pop(best)
                    queue.remove(best)
                    in_flight[key] = in_flight.get(key, 0) + 1
        numbers = [sum(of == key for of, _, _ in waiting.values()) for key in "abcdef"]
        yielding = queue.to_yield(-1, "other", lambda _: True)
        assert (yielding is None) == (max(numbers) <= 1)
        if yielding is not None:
            of, at, _ = waiting[yielding]
            assert numbers["abcdef".index(of)] == max(numbers)
            assert at == max(arrived for key, arrived, _ in waiting.values() if key == of)
    assert sum(len(lane._heap) for lane in queue._lanes.values()) < 400, "entries that are out of date are removed"


@pytest.mark.parametrize("number", [5, 100])
def test_what_is_free_is_that_of_a_look_at_all_replicas(number: int) -> None:
    """Limits, refusals, other gateways and time at random: none that can take a request is overlooked."""
    draw, now = random.Random(number), [10.0]  # noqa: S311 - of no secret
    table = RoutingTable(lambda: now[0], draw.random)
    replicas = [endpoint(f"r-{n}", most=draw.choice([1, 1, 2])) for n in range(number)]
    table.update(models("m"), replicas)
    at: list[Endpoint] = []
    found = []
    for _ in range(6000):
        one = draw.choice(replicas)
        match draw.choice(["ask", "ask", "ask", "end", "end", "told", "refused", "answered", "time", "update"]):
            case "ask" if (picked := table.pick("m")) is not None:
                table.enter(picked)
                at.append(picked)
            case "end" if at:
                table.leave(at.pop(draw.randrange(len(at))))
            case "told":
                table.reported(one, table.in_flight(one.instance) + draw.choice([-1, 0, 1, 2]))
            case "refused":
                table.refused(one)
            case "answered":
                table.answered(one)
            case "time":
                now[0] += draw.choice([0.01, 0.5, 2.0, 30.0])
            case "update" if draw.random() < 0.05:
                table.update(models("m"), replicas)
        free = any(
            table._load(one.instance, now[0]) < one.max_in_flight and table._backoff.waits_until(one.instance) <= now[0]
            for one in replicas
        )
        assert table.free("m") is free
        found.append(free)
    assert 0.02 < sum(found) / len(found) < 0.98
