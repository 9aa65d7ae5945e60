"""Forms: every order of what may happen while they come, and what is still held when no other replica may have them."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.live.endpoints import Endpoint
from gateway.requests.form_upload import FormUpload
from gateway.requests.states import State
from support.builders.models import model
from support.standins.exchange_world import END, EVENT, OK, World, play, settle

MODEL = b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--X\r\n'
FILE = b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 4000 + b"\r\n--X--\r\n"
HEAD = (
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n"
    b"Content-Type: multipart/form-data; boundary=X\r\n\r\n" % len(MODEL + FILE)
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


class Forms(World):
    """Its client sends forms."""

    upload = FormUpload
    request_head, request_body = HEAD, MODEL + FILE

    def events(self) -> dict[str, Callable[[], None]]:
        return super().events() | {
            "model": lambda: self.transport.receive(MODEL),
            "file": lambda: self.transport.receive(FILE),
            "continue": lambda: self.answer(CONTINUE),
        }

    def passed(self) -> list[bool]:
        """Of each connection to an agent, whether the whole form went there."""
        return [bytes(made.written).endswith(MODEL + FILE) for made in self.pool.made]


async def test_every_order_of_two_events_after_each_stage() -> None:
    names = tuple(Forms().events())
    for stage in (("head", "model"), ("head", "model", "continue"), ("request", "continue", "ok", "event")):
        for more in itertools.product(names, repeat=2):
            await play(stage + more, Forms)


async def test_long_random_orders() -> None:
    dice = random.Random(5)  # noqa: S311 - repeatable
    names = tuple(Forms().events())
    often = ("head", "model", "file", "continue", "ok", "event", "end", "continue")
    answered = 0
    for _ in range(300):
        world = await play(tuple(dice.choices((*names, *often, *often), k=25)), Forms)
        answered += sum(one.state is State.DONE for one in world.exchanges)
    assert answered > 60


WHOLE = ("ok", "event", "end")


@pytest.mark.parametrize(
    ("order", "passed", "said"),
    [
        (("head", "model", "continue", "file", *WHOLE), [True], b"200 OK"),
        (("request", "continue", *WHOLE), [True], b"200 OK"),
        (("head", "model", "file", "continue", *WHOLE), [True], b"200 OK"),
        (("request", "refused", "continue", *WHOLE), [False, True], b"200 OK"),
        (("head", "model", "late", "continue", "file", *WHOLE), [False, True], b"200 OK"),
        (("request", "continue", "busy"), [True], b"full"),
        (("request", "continue", "refused"), [True], b'"code":"unavailable"'),
        (("request", "continue", "died"), [True], b'"code":"engine_died"'),
        (("request", "continue", "late"), [True], b'"code":"timed_out"'),
        (("request", "engine lost"), [False], b'"code":"engine_died"'),
        (("head", "model", "continue", "late"), [False], b'"code":"body_timed_out"'),
        (("head", "late"), [], b'"code":"body_timed_out"'),
        (("head", "file"), [], b"must begin with the boundary"),
        (("head", "model", "continue", "model"), [False], b"inside a part"),
        (("no connections", "request"), [], b'"code":"model_not_running"'),
    ],
)
async def test_a_form_goes_to_another_replica_only_while_it_is_held(
    order: tuple[str, ...], passed: list[bool], said: bytes
) -> None:
    world = await play(order, Forms)
    assert isinstance(world, Forms)
    assert said in world.transport.written
    assert world.passed() == passed


LONG_FILE = FILE[:-9] + b"x" * 60_000 + FILE[-9:]
WINDOW_S = 15


class SlowForms(Forms):
    """A form of 64 kB, with seconds that the test counts."""

    request_head = HEAD.replace(b"Length: %d" % len(MODEL + FILE), b"Length: %d" % len(MODEL + LONG_FILE))

    def __init__(self) -> None:
        super().__init__()
        running = asyncio.get_running_loop()
        loop: Any = SimpleNamespace(time=lambda: self.now, create_task=running.create_task, call_soon=running.call_soon)
        self.models = replace(self.models, loop=loop)
        self.left = LONG_FILE

    async def begin(self) -> None:
        """It is at an engine, which takes the body."""
        self.transport.receive(self.request_head + MODEL)
        await settle()
        self.answer(CONTINUE)
        self.check()
        assert self.at_replicas() == 1

    def send(self, size: int) -> None:
        self.transport.receive(self.left[:size])
        self.left = self.left[size:]

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            for exchange in list(self.models.under_way):
                exchange.overdue(self.now)

    def at_replicas(self) -> int:
        return sum(self.table.in_flight(name) for name in "ab")


@pytest.mark.parametrize(("size", "pause_s"), [(0, 1), (1, 1), (1, 14), (400, 2)])
async def test_a_form_that_trickles_loses_its_place_at_the_engine(size: int, pause_s: int) -> None:
    world = SlowForms()
    await world.begin()
    for _ in range(-(-WINDOW_S // pause_s)):
        assert world.at_replicas() == 1
        world.send(size)
        world.wait(pause_s)
    assert b'"code":"body_timed_out"' in world.transport.written
    assert b"fewer than 4096 bytes came within 15 s" in world.transport.written
    assert world.at_replicas() == 0
    assert [made.closing for made in world.pool.made] == [True], "the engine's connection ends with it"
    world.check()


async def test_a_form_on_a_slow_line_passes() -> None:
    world = SlowForms()
    await world.begin()
    while world.left:
        world.send(4096)
        world.wait(WINDOW_S - 1)
    for answer in (OK, EVENT, END):
        world.answer(answer)
    assert b"200 OK" in world.transport.written
    assert bytes(world.pool.made[0].written).endswith(MODEL + LONG_FILE)
    assert world.now > 10 * WINDOW_S
    world.check()


async def test_a_client_is_not_slow_while_the_engine_takes_nothing() -> None:
    world = SlowForms()
    await world.begin()
    (engine,) = world.pool.made
    engine.block()
    world.wait(4 * WINDOW_S)
    engine.unblock()
    world.wait(WINDOW_S - 1)
    assert world.at_replicas() == 1
    world.wait(1)
    assert b"fewer than 4096 bytes came" in world.transport.written


async def test_a_client_is_not_read_while_its_first_bytes_fill_the_engines_buffer() -> None:
    world = SlowForms()
    world.transport.receive(world.request_head + MODEL)
    await settle()
    (engine,) = world.pool.made
    engine.full = True
    world.answer(CONTINUE)
    assert not world.transport.reading
    world.wait(4 * WINDOW_S)
    assert world.at_replicas() == 1
    engine.full = False
    engine.unblock()
    assert world.transport.reading
    world.send(len(world.left))
    for answer in (OK, EVENT, END):
        world.answer(answer)
    assert b"200 OK" in world.transport.written


async def test_a_form_that_waited_long_for_its_replica_has_the_time_of_any_other() -> None:
    world = SlowForms()
    limits = model("m", serving={"queue": {"wait": "1h"}})
    world.table.update({"m": limits}, [])
    world.transport.receive(world.request_head + MODEL)
    await settle()
    (request,) = world.exchanges
    assert request.state is State.WAITING, world.transport.written
    world.wait(1_000)
    assert request.state is State.WAITING, world.transport.written
    world.table.update({"m": limits}, [Endpoint("m", "a", "127.0.0.1:1", "s")])
    world.queues.routes_changed()
    await settle()
    world.answer(CONTINUE)
    while world.left:
        world.wait(WINDOW_S - 1)
        world.send(4096)
    for answer in (OK, EVENT, END):
        world.answer(answer)
    assert b"200 OK" in world.transport.written
    world.check()


@pytest.mark.parametrize("continued", [True, False])
async def test_a_form_that_breaks_off_ends_at_the_engine_too(continued: bool) -> None:
    world = SlowForms()
    world.transport.receive(world.request_head + MODEL)
    await settle()
    if continued:
        world.answer(CONTINUE)
    world.transport.receive(LONG_FILE[:-9] + b"\r\n--Y--\r\n")
    assert b"the form breaks off" in world.transport.written
    assert [made.closing for made in world.pool.made] == [True]
    world.check()


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="model"',
        b"Content-Disposition: form-data; name=model\r\nContent-Length: 1",
    ],
)
async def test_the_part_of_the_model_is_written_anew(head: bytes) -> None:
    class Headed(Forms):
        request_body = MODEL.replace(b'Content-Disposition: form-data; name="model"', head) + FILE
        request_head = HEAD.replace(b"%d" % len(MODEL + FILE), b"%d" % len(request_body))

    world = await play(("request", "continue", *WHOLE), Headed)
    (engine,) = world.pool.made
    assert bytes(engine.written).endswith(b"\r\n\r\n" + MODEL + FILE)
    assert b"content-length: %d\r\n" % len(MODEL + FILE) in engine.written
