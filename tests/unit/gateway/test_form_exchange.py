"""Forms: every order of what may happen while they come, and what is still held when no other replica may have them."""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from gateway.exchange.form_exchange import FormExchange
from gateway.exchange.states import State
from support.standins.exchange_world import World, play

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

    request_type = FormExchange
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
        (("head", "file"), [], b'"param":"model"'),
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
