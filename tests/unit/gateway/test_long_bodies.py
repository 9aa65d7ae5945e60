"""A long body: one of each key at a time, in a child where it would hold the loop; every end leaves nothing behind."""

import asyncio
import itertools
import random
from collections.abc import Iterator

import orjson
import pytest
from structlog.testing import capture_logs

from gateway.bodies import long_bodies
from gateway.bodies.json_body import JsonBody, read_json
from gateway.bodies.long_bodies import LONG_BYTES, ChildError, LongBodies, held_s
from gateway.bodies.parameters import BadRequestError
from gateway.requests import upload
from gateway.requests.states import State
from support.standins.exchange_world import END, OK, World, play, settle

LIMIT_S = 30.0
FILL = b'"x": [0' + b", 0" * (LONG_BYTES // 3) + b"]"
LONG = b'{"stream": true, "model": "m", ' + FILL + b', "stream_options": {"a": 1}, "y": {"stream_options": 1} }\n'
IMAGE = b'{"model": "m", "x": "' + b"x" * 2 * LONG_BYTES + b'"}'


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every long body is read in a child."""
    monkeypatch.setattr(long_bodies, "_MOST_HELD_S", 0.0)


def request(body: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def sent(world: World) -> bytes:
    """What the engine got, once it got something."""
    async with asyncio.timeout(LIMIT_S):
        while world.engine is None:  # noqa: ASYNC110 - nothing notifies of it
            await asyncio.sleep(0.001)
    return world.engine.written.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("in_child", [False, True])
async def test_a_long_body_reaches_the_engine_and_only_its_options_change(in_child: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if in_child:
            patch.setattr(long_bodies, "_MOST_HELD_S", 0.0)
        world = World()
        for start in range(0, len(request(LONG)), 100_000):
            world.transport.receive(request(LONG)[start : start + 100_000])
        assert world.engine is None, "others go first"
        got = await sent(world)
    assert orjson.loads(got) == {**orjson.loads(LONG), "stream_options": {"a": 1, "include_usage": True}}
    world.answer(OK)
    world.answer(END)
    await settle()
    assert world.exchanges[0].state is State.DONE
    world.check()


async def test_a_long_body_without_changes_passes_as_it_came() -> None:
    world = World()
    world.transport.receive(request(IMAGE))
    assert await sent(world) == IMAGE
    world.transport.lose()
    await settle()
    world.check()


@pytest.mark.parametrize("in_child", [False, True])
@pytest.mark.parametrize("body", [LONG[:-3] + b",}", LONG.replace(b'"model"', b'"other"'), b"[" + LONG + b"]"])
async def test_a_long_body_is_refused_as_a_short_body(body: bytes, in_child: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if in_child:
            patch.setattr(long_bodies, "_MOST_HELD_S", 0.0)
        world = World()
        world.transport.receive(request(body))
        async with asyncio.timeout(LIMIT_S):
            while world.exchanges[0].state is State.RECEIVING:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
    assert b" 400 " in world.transport.written
    assert b'"code":"invalid"' in world.transport.written
    world.check()


@pytest.mark.usefixtures("children")
async def test_a_client_that_leaves_ends_the_child() -> None:
    world = World()
    world.transport.receive(request(LONG))
    await asyncio.sleep(0.02)
    world.transport.lose()
    await settle()
    assert world.exchanges[0].state is State.CUT
    assert not world.pool.made
    world.check()
    async with asyncio.timeout(LIMIT_S):
        read = await world.models.long_bodies.read("k", LONG)
    assert read.parameters.model == "m", "the turn is free"


async def test_a_body_whose_child_dies_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_bodies, "_MOST_HELD_S", 0.0)
    monkeypatch.setattr(long_bodies, "_CHILD", ("/bin/false",))
    with pytest.raises(ChildError):
        await LongBodies().read("k", LONG)
    world = World()
    world.transport.receive(request(LONG))
    async with asyncio.timeout(LIMIT_S):
        while world.exchanges[0].state is State.RECEIVING:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
    assert b'"code":"unavailable"' in world.transport.written


async def test_a_body_that_is_not_read_in_time_ends() -> None:
    world = World()
    world.transport.receive(request(LONG))
    await asyncio.sleep(0)
    world.late()
    assert b'"code":"unavailable"' in world.transport.written
    await settle()
    world.check()


async def test_a_keys_bodies_are_read_one_at_a_time_and_other_keys_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_bodies, "_MOST_HELD_S", 0.0)
    bodies, gates, reading = LongBodies(), [asyncio.Event() for _ in range(3)], list[bytes]()

    async def read_in_child(body: bytes) -> JsonBody:
        reading.append(body)
        await gates[len(reading) - 1].wait()
        return JsonBody(read_json(body), body)

    monkeypatch.setattr(long_bodies, "_read_in_child", read_in_child)
    one, two, other = (b'{"model": "%b"}' % name for name in (b"one", b"two", b"other"))
    tasks = [asyncio.create_task(bodies.read(key, body)) for key, body in (("k", one), ("k", two), ("o", other))]
    await settle()
    assert reading == [one, other]
    gates[0].set()
    await tasks[0]
    await settle()
    assert reading == [one, other, two]
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert not bodies._turns


def test_the_estimate_tells_texts_from_many_values() -> None:
    image, values = b'{"x": "' + b"x" * 2**24 + b'"}', b"[" + b"[]," * 2**22 + b"0]"
    assert held_s(image) < 0.05 < held_s(values)
    prose, spaces = b'{"x": "' + b"so it is " * 2**21 + b'"}', b'{"x":' + b" " * 2**24 + b"1}"
    assert held_s(prose) < 0.05 < held_s(spaces)


async def test_a_refusal_in_a_child_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_bodies, "_MOST_HELD_S", 0.0)
    with pytest.raises(BadRequestError) as refused:
        await LongBodies().read("k", b'{"model": "m", "rid": "x"}')
    assert refused.value.param == "rid"


async def test_every_order_of_two_events_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "LONG_BYTES", 0)
    names = tuple(World().events())
    for more in itertools.product(names, repeat=2):
        await play(("request", *more))
    dice = random.Random(12)  # noqa: S311 - repeatable
    answered = 0
    for _ in range(100):
        world = await play(tuple(dice.choices((*names, "request", "request", "ok", "event", "end"), k=25)))
        answered += sum(one.state is State.DONE for one in world.exchanges)
    assert answered > 20
