"""How many replicas one request tries where each refuses it, and what follows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.live.endpoints import Endpoint
from gateway.requests.states import State
from support.builders.models import model
from support.standins.exchange_world import BUSY, END, EVENT, OK, World, settle

REPLICAS, MOST = 40, 16


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def world_of(*, queue: int, **serving: Any) -> World:
    world = World()
    known = model("m", serving={"queue": {"length": queue}, **serving})
    world.table.update({"m": known}, [Endpoint("m", f"r-{n}", f"127.0.0.1:{n + 1}", "s") for n in range(REPLICAS)])
    return world


async def settled() -> None:
    for _ in range(REPLICAS):
        await settle()


async def test_a_request_that_no_replica_takes_is_refused_after_16() -> None:
    world = world_of(queue=0)
    world.events()["no connections"]()
    world.events()["request"]()
    await settled()
    head, _, body = bytes(world.transport.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    error = json.loads(body)["error"]
    assert error["code"] == "model_not_running"
    assert error["details"]["tried"] == [f"r-{n}" for n in range(MOST)], "in the order in which they were tried"
    assert len(world.table._backoff.suspects) == MOST


async def test_the_503_of_engines_is_the_answer_after_16() -> None:
    world = world_of(queue=4)
    world.events()["request"]()
    await settle()
    asked = 0
    while world.engine is not None:
        asked += 1
        world.answer(BUSY)
        await settle()
    assert asked == MOST
    assert bytes(world.transport.written).startswith(b"HTTP/1.1 503 ")
    assert bytes(world.transport.written).endswith(b"full"), "the engine's own"


async def test_where_it_may_wait_it_goes_on_in_its_turn() -> None:
    world = world_of(queue=4)
    world.events()["no connections"]()
    world.events()["request"]()
    await settled()
    (request,) = world.exchanges
    assert (request.state, len(world.table._backoff.suspects)) == (State.WAITING, MOST)
    world.queues.pump_all()
    await settled()
    assert (request.state, len(world.table._backoff.suspects)) == (State.WAITING, 2 * MOST)
    world.pool.refuses = False
    world.queues.pump_all()
    await settled()
    for data in (OK, EVENT, END):
        world.answer(data)
    assert request.state is State.DONE
    assert world.transport.written.count(b"HTTP/1.1 200 OK") == 1
