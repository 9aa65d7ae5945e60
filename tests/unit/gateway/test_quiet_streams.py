"""Streams whose engine is silent: comments keep them alive, and none comes before the engine could have refused."""

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gateway.requests.form_upload import FormUpload
from support.standins.exchange_world import DIED, END, EVENT, OK, World, settle

STREAM = b'{"model": "m", "stream": true}'
REFUSAL = b'{"error": {"message": "the prompt is too long"}}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CREATED = b'data: {"sequence_number": 3}\n\n'


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


async def world_asked(path: bytes = b"/v1/chat/completions", body: bytes = STREAM, kind: bytes = b"") -> World:
    """A request at its engine, complete and unanswered."""
    world = World()
    if kind:
        world.upload = FormUpload
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (path, len(body))
    world.transport.receive(head + (b"content-type: %b\r\n" % kind if kind else b"") + b"\r\n" + body)
    await settle()
    if kind:
        world.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
        await settle()
    return world


def after(world: World, seconds: float) -> bytes:
    """What the client has got by then."""
    (exchange,) = world.exchanges
    exchange.overdue(exchange.arrived + seconds)
    return bytes(world.transport.written)


async def test_once_the_head_has_come_a_silent_prefill_is_bridged_by_comments() -> None:
    world = await world_asked()
    world.answer(OK.replace(b"\r\n\r\n", b"\r\nx-engine: it\r\n\r\n"))
    await settle()
    assert after(world, 14) == b"", "an end before the first event still has a status"
    begun = after(world, 16)
    head, _, body = begun.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"x-engine: it" in head
    assert b"x-accel-buffering: no" in head
    assert b"\n\n" in body
    assert b"data:" not in body
    assert after(world, 20) == begun
    assert len(after(world, 27)) > len(begun), "and another each ten seconds"
    world.answer(EVENT + END)
    await settle()
    assert world.transport.written.endswith(EVENT + END)
    assert world.transport.written.count(b"HTTP/1.1") == 1
    world.check()


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_a_refusal_within_half_a_minute_keeps_its_status(status: int) -> None:
    world = await world_asked()
    assert after(world, 29) == b""
    world.answer(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(REFUSAL)))
    after(world, 45)  # its head has come, its body has not
    world.answer(REFUSAL)
    await settle()
    assert world.transport.written.startswith(b"HTTP/1.1 %d" % status)
    assert world.transport.written.endswith(REFUSAL)
    world.check()


async def test_an_engine_that_sends_no_head_while_it_works_is_bridged_too() -> None:
    world = await world_asked()
    assert after(world, 31).startswith(b"HTTP/1.1 200 OK")
    world.answer(OK + EVENT + END)
    await settle()
    assert world.transport.written.endswith(EVENT + END)
    assert world.transport.written.count(b"HTTP/1.1") == 1
    world.check()


@pytest.mark.parametrize(
    ("path", "kind"), [(b"/v1/chat/completions", 400), (b"/v1/messages", 400), (b"/v1/responses", 400)]
)
async def test_a_refusal_behind_comments_is_an_error_event_with_the_engines_words(path: bytes, kind: int) -> None:
    world = await world_asked(path)
    after(world, 31)
    world.answer(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (kind, len(REFUSAL)))
    for at in range(0, len(REFUSAL), 7):
        world.answer(REFUSAL[at : at + 7])
        await settle()
    body = error_in(world)
    assert "the prompt is too long" in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    if path == b"/v1/responses":
        assert (body["type"], body["code"], body["sequence_number"]) == ("error", "engine_error", 0)
    world.check()


async def test_an_engine_that_dies_behind_comments_leaves_an_error_event() -> None:
    world = await world_asked(b"/v1/messages")
    after(world, 31)
    world.answer(DIED)
    await settle()
    body = error_in(world)
    assert (body["type"], body["error"]["type"], body["error"]["code"]) == ("error", "api_error", "engine_died")
    assert world.transport.closing
    world.check()


async def test_a_begun_answer_of_responses_breaks_off_with_the_next_number() -> None:
    world = await world_asked(b"/v1/responses")
    world.answer(OK + b"%x\r\n%b\r\n" % (len(CREATED), CREATED) + b"5\r\ndata:\r\n")
    await settle()
    assert world.engine is not None
    world.engine.lose()
    await settle()
    body = error_in(world)
    assert (body["type"], body["sequence_number"], body["code"]) == ("error", 4, "engine_died")
    world.check()


async def test_comments_fill_the_silence_within_an_answer_but_not_within_an_event() -> None:
    world = await world_asked(b"/v1/responses")
    world.answer(OK + EVENT)
    await settle()
    begun = bytes(world.transport.written)
    assert after(world, 14) == begun
    commented = after(world, 16)
    assert commented != begun
    assert after(world, 20) == commented
    large = b"data: " + b"x" * 300_000
    world.answer(b"%x\r\n%b\r\n" % (len(large), large))  # more than is held: its beginning has passed
    await settle()
    passed = bytes(world.transport.written)
    assert after(world, 60) == passed
    world.answer(b"2\r\n\n\n\r\n" + END)
    await settle()
    world.check()


async def test_a_client_that_takes_nothing_gets_no_comments() -> None:
    world = await world_asked()
    world.answer(OK + EVENT)
    await settle()
    world.block(on=True)
    before = bytes(world.transport.written)
    assert after(world, 40) == before


@pytest.mark.parametrize("body", [b'{"model": "m"}', b'{"model": "m", "stream": false}'])
async def test_other_answers_are_waited_for_in_silence(body: bytes) -> None:
    world = await world_asked(body=body)
    assert after(world, 200) == b""
    world.answer(PLAIN)
    await settle()
    assert b"x-accel-buffering" not in world.transport.written
    world.check()


@pytest.mark.parametrize(("value", "streams"), [(b"true", True), (b"1", True), (b"false", False), (None, False)])
async def test_a_form_that_asks_for_a_stream_is_kept_alive(value: bytes | None, streams: bool) -> None:
    fields = [(b"model", b"m")] + ([(b"stream", value)] if value is not None else [])
    parts = [b'--X\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % field for field in fields]
    body = b"".join(parts) + b"--X--\r\n"
    world = await world_asked(b"/v1/audio/transcriptions", body, b"multipart/form-data; boundary=X")
    assert after(world, 45).startswith(b"HTTP/1.1 200 OK") is streams
    world.answer(OK + EVENT + END)
    await settle()
    assert world.transport.written.endswith(EVENT + END)
    world.check()


def error_in(world: World) -> dict:  # type: ignore[type-arg]
    lines = bytes(world.transport.written).split(b"\n")
    return dict(json.loads(next(line for line in reversed(lines) if line.startswith(b"data: {"))[6:]))
