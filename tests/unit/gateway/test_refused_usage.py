"""An engine that does not know `stream_options`: its streams are served without, and its own refusals stay its own."""

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from controller.live.endpoints import Endpoint
from schemas.manifest.serving import ServingLimits
from support.standins.exchange_world import END, EVENT, OK, World, settle

STREAM = b'{"model": "m", "stream": true}'
NAMED = b'{"error": "Extra inputs are not permitted: stream_options"}'


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def world_with(stream_usage: str = "auto", body: bytes = STREAM) -> World:
    world = World()
    limits = ServingLimits.model_validate({"stream_usage": stream_usage, "queue": {"length": 0}})
    made = world.table.model("m")
    assert made is not None
    world.table.update({"m": made}, [Endpoint("m", "a", "127.0.0.1:1", "s", limits, epoch=1)])
    world.request_body = body
    world.request_head = world.request_head.replace(b"Content-Length: 14", b"Content-Length: %d" % len(body))
    return world


async def request(world: World) -> bytes:
    """Sends one; what its engine gets of it."""
    before = sum(len(one.written) for one in world.pool.made)
    world.transport.receive(world.request_head + world.request_body)
    await settle()
    return b"".join(bytes(one.written) for one in world.pool.made)[before:]


async def refuse(world: World, body: bytes = NAMED, status: int = 400) -> bytes:
    """The engine refuses; what it is sent then."""
    before = sum(len(one.written) for one in world.pool.made)
    world.answer(b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
    for at in range(0, len(body), 20):
        world.answer(body[at : at + 20])
    await settle()
    return b"".join(bytes(one.written) for one in world.pool.made)[before:]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("named", [NAMED, b'{"detail": "unknown field include_usage"}'])
async def test_the_request_is_sent_once_more_without_the_field(named: bytes, status: int) -> None:
    world = world_with()
    assert b"include_usage" in await request(world)
    again = await refuse(world, named, status)
    assert again.endswith(STREAM), "as its client sent it"
    world.answer(OK + EVENT + END)
    await settle()
    assert b"data: x" in world.transport.written
    assert b"400" not in world.transport.written
    world.check()
    # The replica's later streams are not asked any more, until it starts anew.
    assert b"include_usage" not in await request(world)
    world.answer(OK + EVENT + END)
    await settle()
    known = world.table.model("m")
    assert known is not None
    world.table.update({"m": known}, [Endpoint("m", "a", "127.0.0.1:1", "s", ServingLimits(), epoch=2)])
    assert b"include_usage" in await request(world)


async def test_a_second_refusal_is_the_clients() -> None:
    world = world_with()
    await request(world)
    await refuse(world)
    assert await refuse(world) == b"", "it is not sent a third time"
    assert NAMED in world.transport.written
    world.check()


@pytest.mark.parametrize(
    ("stream_usage", "body", "refusal", "status"),
    [
        ("on", STREAM, NAMED, 400),
        ("auto", STREAM, b'{"error": "messages: is empty"}', 400),
        ("auto", STREAM, b"{}", 422),
        ("auto", STREAM, NAMED + b" " * 2**17, 400),
        ("auto", STREAM, NAMED, 404),
        ("auto", STREAM, NAMED, 500),
        ("auto", b'{"model": "m"}', NAMED, 400),
        ("auto", b'{"model": "m", "stream": true, "stream_options": {"include_usage": true}}', NAMED, 400),
    ],
)
async def test_other_refusals_are_the_clients(stream_usage: str, body: bytes, refusal: bytes, status: int) -> None:
    world = world_with(stream_usage, body)
    await request(world)
    assert await refuse(world, refusal, status) == b"", "it is not sent again"
    assert world.transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert refusal in world.transport.written
    world.check()


async def test_off_asks_for_nothing() -> None:
    assert (await request(world_with("off"))).endswith(STREAM)


async def test_an_engine_that_ends_within_its_refusal_has_not_refused() -> None:
    world = world_with()
    await request(world)
    world.answer(b"HTTP/1.1 400 x\r\ncontent-length: 900\r\n\r\n" + NAMED)
    assert world.engine is not None
    world.engine.lose()
    await settle()
    assert b"502" in world.transport.written
    world.check()


@pytest.mark.parametrize(("written", "meant"), [("auto", "auto"), (True, "on"), (False, "off"), ("off", "off")])
def test_yaml_writes_the_words_as_booleans(written: object, meant: str) -> None:
    assert (
        json.loads(ServingLimits.model_validate({"stream_usage": written}).model_dump_json())["stream_usage"] == meant
    )
