"""Requests that crash engines are refused before a replica gets them: bodies, long ones and forms."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from controller.live.crashed_requests import Suspicion
from controller.live.endpoints import Endpoint
from gateway.requests.crash_watch import CrashWatch
from gateway.requests.form_upload import FormUpload
from gateway.requests.states import State
from support.standins.crashes import Crashes
from support.standins.exchange_world import BODY, DIED, END, EVENT, HEAD, OK, World, settle

ENDPOINT = Endpoint("m", "a", "127.0.0.1:1", "s")
MODEL = b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--X\r\n'
FILE = b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 4000 + b"\r\n--X--\r\n"
FORM_HEAD = (
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
    b"Content-Type: multipart/form-data; boundary=%b\r\n\r\n"
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def a_world(kind: type[World] = World) -> tuple[World, Crashes]:
    world, crashes = kind(), Crashes()
    world.models = replace(world.models, crashes=crashes)
    return world, crashes


class Forms(World):
    upload = FormUpload


def sent(world: World) -> bytes:
    return b"".join(bytes(made.written) for made in world.pool.made)


async def ask(world: World, body: bytes = BODY) -> bytes:
    """What the client has got of the answer."""
    before = len(world.transport.written)
    world.transport.receive(HEAD.replace(b"Length: %d" % len(BODY), b"Length: %d" % len(body)) + body)
    for _ in range(20):
        await settle()
    return bytes(world.transport.written[before:])


async def test_the_same_request_is_refused_and_another_is_not() -> None:
    world, crashes = a_world()
    await ask(world)
    assert world.engine is not None
    world.answer(DIED)
    await settle()
    assert b"502" in world.transport.written
    answer = await ask(world)
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b"x-should-retry: false" in answer
    assert b'"crashes_engine"' in answer
    assert len(crashes.at_ends) == 1
    await ask(world, b'{"model": "m", "n": 1}')
    assert world.engine is not None, "at a replica"
    world.check()


async def test_what_was_in_flight_at_a_host_that_is_gone_goes_to_another_at_once() -> None:
    world, _ = a_world()
    await ask(world)
    assert world.engine is not None
    world.engine.lose()
    await settle()
    assert b"502" in world.transport.written
    await ask(world)
    assert world.engine is not None, "at a replica"
    world.check()


@pytest.mark.parametrize("owner", ["k", "other"])
async def test_another_keys_request_is_another_one(owner: str) -> None:
    world, _ = a_world()
    await ask(world)
    assert world.engine is not None
    world.answer(DIED)
    await settle()
    world.owner = replace(world.owner, key_id=owner)
    assert (await ask(world)).startswith(b"HTTP/1.1 422 ") is (owner == "k")


async def test_one_whose_answer_had_begun_is_known_too() -> None:
    world, crashes = a_world()
    await ask(world)
    world.answer(OK + EVENT)
    assert world.engine is not None
    world.engine.lose()
    await settle()
    assert world.transport.closing
    again, _ = a_world()
    again.models = replace(again.models, crashes=crashes)
    assert (await ask(again)).startswith(b"HTTP/1.1 422 ")


ERROR_EVENT = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
WHOLE = b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (WHOLE % 500, True),
        (WHOLE % 502, True),
        (b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n", True),
        (OK + EVENT + b"%x\r\n%b\r\n" % (len(ERROR_EVENT), ERROR_EVENT) + END, True),
        *((WHOLE % status, False) for status in (200, 400, 404, 429, 501, 503)),
        (OK + EVENT + END, False),
    ],
)
async def test_one_that_was_answered_with_an_error_counts_once_its_engine_ends(answer: bytes, counts: bool) -> None:
    world, crashes = a_world()
    world.owner = replace(world.owner, role="inference")  # its use is counted, so that its events are read
    await ask(world)
    for _ in range(2):  # a 503 goes to both replicas
        world.answer(answer)
        await settle()
    assert not world.models.under_way
    world.check()
    again, _ = a_world()
    again.models = replace(again.models, crashes=crashes)
    await ask(again)
    assert again.engine is not None, "while its engine goes on it is not held up"
    last, _ = a_world()
    last.models = replace(last.models, crashes=crashes)
    crashes.end_engines()
    assert (await ask(last)).startswith(b"HTTP/1.1 422 ") is counts


async def test_a_form_that_was_answered_with_an_error_counts_too() -> None:
    world, crashes = a_world(Forms)
    head, model, file = form(b"X")
    world.transport.receive(head + model + file)
    await settle()
    world.answer(CONTINUE)
    await settle()
    world.answer(WHOLE % 500)
    await settle()
    crashes.end_engines()
    again, _ = a_world(Forms)
    again.models = replace(again.models, crashes=crashes)
    head, model, file = form(b"Y")
    again.transport.receive(head + model + file)
    await settle()
    again.answer(CONTINUE)
    await settle()
    assert again.transport.written.startswith(b"HTTP/1.1 422 ")


async def test_a_long_body_is_known_in_whatever_pieces_it_comes() -> None:
    world, crashes = a_world()
    world.models = replace(world.models, bodies=type(world.bodies)(10**8, 10**8))
    body = b'{"model": "m", "prompt": "' + b"x" * 700_000 + b'"}'
    world.transport.receive(HEAD.replace(b"Length: %d" % len(BODY), b"Length: %d" % len(body)))
    for at in range(0, len(body), 50_000):
        world.transport.receive(body[at : at + 50_000])
    while world.engine is None:
        await settle()
    world.answer(DIED)
    await settle()
    assert len(crashes.at_ends) == 1
    before = len(world.transport.written)
    world.transport.receive(HEAD.replace(b"Length: %d" % len(BODY), b"Length: %d" % len(body)) + body)
    while len(world.transport.written) == before:
        await settle()
    assert world.transport.written[before:].startswith(b"HTTP/1.1 422 ")


async def test_a_request_waits_while_it_is_undecided_and_then_goes_on() -> None:
    world, crashes = a_world()
    await ask(world)
    assert world.engine is not None
    world.answer(DIED)
    await settle()
    crashes.crashes = 0
    world.transport.receive(HEAD + BODY)
    await settle()
    assert world.engine is None, "at no replica yet"
    crashes.at_ends.clear()
    world.models.loop.call_later(0, lambda: None)
    world.transport.lose()
    await settle()
    world.check()


def form(boundary: bytes) -> tuple[bytes, bytes, bytes]:
    model, file = MODEL.replace(b"--X", b"--" + boundary), FILE.replace(b"--X", b"--" + boundary)
    return FORM_HEAD % (len(model + file), boundary), model, file


async def test_no_engine_gets_all_of_a_form_that_crashes_engines() -> None:
    """Its client chooses another boundary each time."""
    world, crashes = a_world(Forms)
    head, model, file = form(b"X")
    world.transport.receive(head + model + file)
    await settle()
    world.answer(CONTINUE)
    await settle()
    assert sent(world).endswith(file)
    assert world.engine is not None
    world.answer(DIED)
    await settle()
    assert len(crashes.at_ends) == 1
    for pieces in (1, 2, 3):
        boundary = b"Y%d" % pieces
        head, model, file = form(boundary)
        before, answered = len(sent(world)), len(world.transport.written)
        world.transport.receive(head + model)
        await settle()
        if pieces > 1:
            world.answer(CONTINUE)
            await settle()
        size = -(-len(file) // pieces)
        for at in range(0, len(file), size):
            world.transport.receive(file[at : at + size])
            await settle()
        if pieces == 1:
            world.answer(CONTINUE)
            await settle()
        assert world.transport.written[answered:].startswith(b"HTTP/1.1 422 "), pieces
        assert not sent(world)[before:].endswith(b"--" + boundary + b"--\r\n"), pieces
        world.check()
        if world.transport.closing:
            break


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("asked_first", [True, False])
async def test_a_form_waits_too_while_it_is_undecided(crashed: bool, asked_first: bool) -> None:
    """Its client may repeat it before the end of the engine is reported."""
    world, crashes = a_world(Forms)
    head, model, file = form(b"X")
    world.transport.receive(head + model + file)
    await settle()
    world.answer(CONTINUE)
    await settle()
    assert world.engine is not None
    world.answer(DIED)
    while world.models.under_way:
        await settle()
    crashes.crashes, crashes.decision = 0, asyncio.Event()
    head, model, file = form(b"Y")
    before, answered = len(sent(world)), len(world.transport.written)
    world.transport.receive(head + model)
    await settle()
    for step in (CONTINUE, file) if asked_first else (file, CONTINUE):
        (world.answer if step == CONTINUE else world.transport.receive)(step)
        await settle()
    assert not sent(world)[before:].endswith(b"--Y--\r\n"), "no engine has all of it"
    assert world.engine is not None
    if crashed:
        crashes.crashes = 1
    else:
        crashes.at_ends.clear()
    crashes.decision.set()
    await settle()
    assert world.transport.written[answered:].startswith(b"HTTP/1.1 422 ") is crashed
    assert sent(world)[before:].endswith(b"--Y--\r\n") is not crashed
    world.check()


async def test_an_answer_under_way_is_not_ended_as_if_it_were_whole() -> None:
    """An engine may answer before it has all of a form."""
    world, crashes = a_world(Forms)
    crashes.suspicions[b"another"] = Suspicion(1, 9.5)
    head, model, file = form(b"X")
    world.transport.receive(head + model)
    await settle()
    world.answer(CONTINUE)
    await settle()
    world.answer(OK + EVENT)
    await settle()
    (exchange,) = world.models.under_way
    crashes.suspicion = lambda _: Suspicion(1, 9.5)  # type: ignore[method-assign]
    world.transport.receive(file)
    await settle()
    assert exchange.state is State.CUT
    assert world.transport.closing
    assert not world.transport.written.endswith(b"0\r\n\r\n")


async def test_another_form_passes_whole_while_one_is_refused() -> None:
    world, crashes = a_world(Forms)
    crashes.suspicions[b"another"] = Suspicion(1, 9.5)
    head, model, file = form(b"X")
    world.transport.receive(head + model)
    await settle()
    world.answer(CONTINUE)
    for at in range(0, len(file), 1500):
        world.transport.receive(file[at : at + 1500])
        await settle()
    assert sent(world).endswith(file)
    world.check()


async def test_an_end_of_thousands_of_requests_does_not_hold_up_the_others() -> None:
    """All streams of a gateway wait while it notes what was in flight at a host that is gone."""
    watch = CrashWatch()
    requests = [b"%032d" % number for number in range(2000)]
    began = time.process_time()
    for request in requests:
        watch.note(ENDPOINT, request)
    assert time.process_time() - began < 1
    assert all(watch.suspicion(request) is not None for request in requests), "each waits until it is decided"
    assert watch.suspicion(b"x" * 32) is None


async def test_errors_alone_hold_up_nothing_however_many() -> None:
    """An engine may answer all with 500 for hours."""
    watch = CrashWatch()
    began = time.process_time()
    for number in range(20_000):
        watch.note_error(ENDPOINT, b"%032d" % number)
    assert time.process_time() - began < 1
    assert not watch.suspicions
