"""A request with a long body: read in steps while others go on, ended whatever happens meanwhile, sent on untouched."""

import asyncio
import itertools
import random
from collections.abc import Iterator

import orjson
import pytest
from structlog.testing import capture_logs

from gateway.bodies.long_request import LONG_BYTES, LongRequests
from gateway.requests import request as exchange
from gateway.requests.states import State
from support.standins.exchange_world import END, OK, World, play, settle

LIMIT_S = 10.0
FILL = b'"x": [0' + b", 0" * (LONG_BYTES // 3) + b"]"
LONG = b'{"stream": true, "model": "m", ' + FILL + b', "stream_options": {"a": 1}, "y": {"stream_options": 1} }\n'
TWICE = b'{"model": "m", "x": [' + LONG + b", " + LONG + b"]}"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def request(body: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def sent(world: World) -> bytes:
    """What the engine got, once it got something."""
    async with asyncio.timeout(LIMIT_S):
        while world.engine is None:  # noqa: ASYNC110 - nothing notifies of it
            await asyncio.sleep(0)
    return world.engine.written.partition(b"\r\n\r\n")[2]


async def test_a_long_body_reaches_the_engine_and_only_its_options_change() -> None:
    world = World()
    for start in range(0, len(request(LONG)), 100_000):
        world.transport.receive(request(LONG)[start : start + 100_000])
    assert world.engine is None, "it is read in steps"
    got = await sent(world)
    assert got == LONG.replace(b'{"a": 1}', b'{"a":1,"include_usage":true}')
    world.answer(OK)
    world.answer(END)
    await settle()
    assert world.exchanges[0].state is State.DONE
    world.check()


@pytest.mark.parametrize(
    ("value", "in_steps"),
    [
        (b'"' + b"x" * 400_000 + b'"', False),  # an image
        (b'["' + b'Some words, and more, and an end.", "' * 8000 + b'"]', False),
        (b"[" + b"[]," * 60_000 + b"0]", True),
        (b"[" + b"[[[]]]," * 24_000 + b"0]", True),
        (b"[" + b'{"a":0},' * 20_000 + b"0]", True),
        (b"[" + b"[]," * 30_000 + b"0]", False),  # within 128 KiB
    ],
)
async def test_a_shorter_body_of_many_values_is_read_in_steps_too(value: bytes, in_steps: bool) -> None:
    body = b'{"model": "m", "x": ' + value + b"}"
    assert len(body) < LONG_BYTES
    world = World()
    world.transport.receive(request(body))
    assert (world.exchanges[0].state is State.RECEIVING) is in_steps
    assert await sent(world) == body
    world.transport.lose()
    await settle()


async def test_a_body_without_options_gets_them_at_its_end() -> None:
    world = World()
    body = b'{"stream": true, "model": "m", ' + FILL + b" }" + b"\n" * 200_000
    world.transport.receive(request(body))
    got = await sent(world)
    assert orjson.loads(got) == {**orjson.loads(body), "stream_options": {"include_usage": True}}
    assert len(got) == len(body) + len(b',"stream_options":{"include_usage":true}')
    world.transport.lose()
    await settle()


@pytest.mark.parametrize("body", [LONG[:-3] + b",}", LONG.replace(b'"model"', b'"other"'), b"[" + LONG + b"]"])
async def test_a_long_body_is_refused_as_a_short_one(body: bytes) -> None:
    world = World()
    world.transport.receive(request(body))
    async with asyncio.timeout(LIMIT_S):
        while world.exchanges[0].state is State.RECEIVING:  # noqa: ASYNC110 - nothing notifies of it
            await asyncio.sleep(0)
    assert b" 400 " in world.transport.written
    assert b'"code":"invalid"' in world.transport.written
    world.check()


async def test_a_client_that_leaves_ends_the_reading() -> None:
    world = World()
    world.transport.receive(request(LONG))
    await asyncio.sleep(0)
    world.transport.lose()
    await settle()
    assert world.exchanges[0].state is State.CUT
    assert not world.pool.made
    world.check()
    async with asyncio.timeout(LIMIT_S):
        assert (await world.models.long_requests.read([LONG])).model == "m", "the turn is free"


async def test_one_that_is_not_read_in_time_is_told_so() -> None:
    world = World()
    world.transport.receive(request(LONG))
    await asyncio.sleep(0)
    world.late()
    assert b'"code":"unavailable"' in world.transport.written
    await settle()
    world.check()


async def test_others_go_on_between_the_steps_and_all_get_their_turn() -> None:
    requests, order = LongRequests(), []

    async def read(name: str, pieces: list[bytes]) -> None:
        await requests.read(pieces)
        order.append(name)

    turns = 0
    reading = asyncio.gather(read("long", [LONG]), read("longer", [TWICE]), read("last", [LONG]))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert order == ["long", "last", "longer"]
    assert turns >= 4 * LONG_BYTES // (64 * 1024)


async def test_every_order_of_two_events_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "is_long", lambda *_: True)
    names = tuple(World().events())
    for more in itertools.product(names, repeat=2):
        await play(("request", *more))
    dice = random.Random(12)  # noqa: S311 - repeatable
    answered = 0
    for _ in range(100):
        world = await play(tuple(dice.choices((*names, "request", "request", "ok", "event", "end"), k=25)))
        answered += sum(one.state is State.DONE for one in world.exchanges)
    assert answered > 20
