"""Every order of pause, close, death and time-out: a request runs once, ends once, and leaves nothing behind."""

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from controller.live.key_ring import Principal
from controller.live.key_use import Counts
from gateway.requests.states import State
from schemas.key_limits import KeyLimits, LimitKind
from support.standins.exchange_world import BODY, END, HEAD, OK, World, play, settle


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


async def test_every_order_of_two_events_after_each_stage() -> None:
    names = tuple(World().events())
    stages = (("head",), ("request",), ("request", "ok", "event"))
    for stage in stages:
        for more in itertools.product(names, repeat=2):
            await play(stage + more)


async def test_long_random_orders() -> None:
    dice = random.Random(11)  # noqa: S311 - repeatable
    names = tuple(World().events())
    answered = 0
    for _ in range(300):
        world = await play(tuple(dice.choices((*names, "request", "request", "ok", "event", "end"), k=25)))
        answered += sum(one.state is State.DONE for one in world.exchanges)
    assert answered > 80


Step = tuple[str, ...]


async def play_in(world: World, *order: str) -> None:
    """Plays these events in a world that goes on."""
    for name in order:
        world.events()[name]()
        await settle()


@pytest.mark.parametrize(
    ("order", "engines", "said"),
    [
        (("request", "ok", "event", "end"), 1, b"200 OK"),
        (("request", "busy", "ok", "event", "end"), 2, b"200 OK"),
        (("request", "refused", "ok", "event", "end"), 2, b"200 OK"),
        (("request", "busy", "busy"), 2, b'"code":"model_not_running"|full'),
        (("request", "engine lost"), 1, b'"code":"engine_died"'),
        (("request", "died"), 1, b'"code":"engine_died"'),
        (("request", "ok", "engine lost"), 1, b'"code":"engine_died"'),
        (("request", "ok", "event", "engine lost"), 1, b'"code":"engine_died"'),
        (("request", "late"), 1, b'"code":"timed_out"'),
        (("request", "ok", "late"), 1, b'"code":"timed_out"'),
        (("request", "ok", "event", "late"), 1, b'"code":"timed_out"'),
        (("head", "late"), 0, b'"code":"body_timed_out"'),
        (("no connections", "request"), 0, b'"code":"model_not_running"'),
        (("request", "ok", "event", "stop"), 1, b'"code":"unavailable"'),
        (("request", "stop"), 1, b'"code":"unavailable"'),
        (("request", "client lost"), 1, b""),
    ],
)
async def test_what_the_client_gets_and_how_many_engines_saw_it(order: Step, engines: int, said: bytes) -> None:
    world = await play(order)
    assert len(world.pool.made) == engines
    assert any(part in world.transport.written for part in said.split(b"|"))
    whole = world.transport.written.endswith(END) or b"content-length" in world.transport.written
    broke_off = order[-1] in ("engine lost", "late", "stop") and "event" in order
    assert not (broke_off and whole), "a broken answer has no end"


async def test_a_client_that_reads_nothing_does_not_make_its_engine_silent() -> None:
    world = World()
    for name in ("request", "ok", "event", "block"):
        world.events()[name]()
        await settle()
    assert world.exchanges[0].deadline == math.inf
    assert world.engine is not None
    assert not world.engine.reading
    world.late()
    assert world.exchanges[0].state is State.ANSWERING
    world.events()["unblock"]()
    assert world.exchanges[0].deadline < math.inf
    assert world.engine.reading
    world.transport.lose()


async def test_no_engine_gets_an_id_twice_whatever_its_clients_choose() -> None:
    """Some engines fail as a whole where two requests have the same id."""
    sent = []
    for given in (b"", b"x-request-id: mine\r\n", b"x-request-id: mine\r\n"):
        world = World()
        world.request_head = world.request_head.replace(b"Content-Length", given + b"Content-Length")
        await play_in(world, "request")
        assert world.engine is not None
        sent.append(next(line for line in world.engine.written.split(b"\r\n") if line.startswith(b"x-request-id: ")))
        world.transport.lose()
    assert sent[0] == b"x-request-id: id"
    assert len({*sent}) == len(sent)
    assert all(one.startswith(b"x-request-id: id-") for one in sent[1:])


@pytest.mark.parametrize(
    ("order", "prompt"),
    [
        (("request", "client lost"), len(BODY) // 4),
        (("request", "ok", "client lost"), len(BODY) // 4),
        (("request", "engine lost"), 0),
        (("head", "client lost"), 0),
    ],
)
async def test_a_client_that_leaves_before_its_answer_has_used_its_prompt(order: Step, prompt: int) -> None:
    world = World()
    used: list[Counts] = []
    world.models.quotas.batches.add = lambda *args: used.append(args[-1])  # type: ignore[method-assign]
    await play_in(world, *order)
    world.transport.lose()
    assert [counts.prompt_tokens for counts in used] == [prompt]


CHOICE = b'18\r\ndata: {"choices":[{}]}\n\n\r\n'
USAGE = b'{"usage":{"prompt_tokens":9,"completion_tokens":40}}'.ljust(53)
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n\r\n{"


@pytest.mark.parametrize(
    ("said", "answer", "completion"),
    [
        (b"", b"", 300),  # ten seconds
        (b', "max_tokens": 7, "n": 2', b"", 14),
        (b', "max_completion_tokens": 40, "max_tokens": 7', b"", 40),
        (b', "n": 3', b"", 900),
        (b', "n": 1000000000, "max_tokens": 1', b"", 128),  # an engine refuses more
        (b', "n": -3, "max_tokens": -1', b"", 300),
        (b', "n": true, "max_tokens": 1e999', b"", None),  # not JSON
        (b', "n": "2", "max_tokens": 2.5', b"", 300),
        (b', "stream": true', b"", 0),  # its first token would have passed
        (b', "stream": "true"', b"", 0),
        (b', "stream": true', OK + 2 * CHOICE, 2),
        (b"", WHOLE, 1000),  # all of it is made
        (b', "max_tokens": 7', WHOLE, 1000),
        (b"", WHOLE.replace(b"4000", b"40"), 300),
        (b"", WHOLE.replace(b"200 OK", b"400 OK"), 0),  # as all that engines refuse
    ],
)
async def test_a_client_that_leaves_pays_for_what_was_made(said: bytes, answer: bytes, completion: int | None) -> None:
    world = World()
    used: list[Counts] = []
    world.models.quotas.batches.add = lambda *args: used.append(args[-1])  # type: ignore[method-assign]
    world.request_body = BODY[:-1] + said + b"}"
    world.request_head = HEAD.replace(b": %d\r" % len(BODY), b": %d\r" % len(world.request_body))
    await play_in(world, "request")
    if completion is None:
        assert world.engine is None
        world.transport.lose()
        return
    world.exchanges[0].exchange.sent_at -= 10.01
    if answer:
        world.answer(answer)
    world.transport.lose()
    (counts,) = used
    assert counts.completion_tokens == pytest.approx(completion, abs=5 if completion == 300 else 0)
    assert counts.estimated == (b"400 OK" not in answer)


async def test_a_client_that_leaves_is_charged_against_its_limits() -> None:
    world = World()
    limits = KeyLimits(tpm=1000)
    use = world.models.quotas._limits.use_of("k", limits)
    share = use.shares[LimitKind.TOKENS]
    share.held = 1000.0
    world.owner = Principal("k", "k", "admin", limits)
    await play_in(world, "request")
    world.exchanges[0].exchange.sent_at -= 10.01
    world.transport.lose()
    assert share.held <= 1000 - 300


@pytest.mark.parametrize("limits", [KeyLimits(), KeyLimits(tpm=10_000)])
@pytest.mark.parametrize(
    ("answer", "least", "most"),
    [
        ((), 300, 320),  # ten seconds of an engine's time, and the prompt
        ((b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n\r\n",), 300, 320),
        ((b"HTTP/1.1 504 x\r\ncontent-length: 2\r\n\r\n{}",), 0, 0),
        ((b"HTTP/1.1 504 x\r\ncontent-length: 53\r\n\r\n", USAGE), 49, 49),
    ],
)
async def test_an_answer_that_ends_in_504_is_charged(
    limits: KeyLimits, answer: tuple[bytes, ...], least: int, most: int
) -> None:
    world = World()
    used: list[Counts] = []
    world.models.quotas.batches.add = lambda *args: used.append(args[-1])  # type: ignore[method-assign]
    world.owner = Principal("k", "k", "admin", limits)
    share = world.models.quotas._limits.use_of("k", limits).shares.get(LimitKind.TOKENS)
    if share is not None:
        share.held = 10_000.0
    await play_in(world, "request")
    world.exchanges[0].exchange.sent_at -= 10.01
    for part in answer:
        world.answer(part)
    world.late()
    await settle()
    assert b" 504 " in world.transport.written
    (counts,) = used
    tokens = counts.prompt_tokens + counts.completion_tokens
    assert least <= tokens <= most
    if share is not None:
        assert share.held == 10_000 - tokens
    world.transport.lose()


async def test_a_model_that_a_key_may_not_ask_for_counts_nothing() -> None:
    world = World()
    world.owner = Principal("k", "k", "inference", KeyLimits(models=("other*",)))
    await play_in(world, "request")
    assert b" 404 " in world.transport.written
    assert [deployment for deployment, *_ in world.models.metrics._series] == [""]
    world.transport.lose()
