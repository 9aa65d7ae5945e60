"""Requests at once: by the proxy, by the engine's gauges, or unknown."""

import socket
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from msgspec.structs import replace

from agent.engine_proxy.in_flight import InFlightRequests
from agent.sampling import request_counts as module
from agent.sampling.request_counts import RequestCounter
from agent.state.process_records import ProcessKey, ProcessRecord
from support.builders.engine_metrics import GAUGES, VLLM
from support.builders.in_flight import a_request
from support.loopback import listening
from support.standins.controller import start_order


class Engine:
    """An engine's /metrics."""

    def __init__(self) -> None:
        self.answer: Callable[[], web.Response] = lambda: web.Response(text=VLLM)
        self.port = 0
        self.packs = False  # where it may

    async def handle(self, request: web.Request) -> web.Response:
        answer = self.answer()
        if self.packs and "gzip" in request.headers.get("Accept-Encoding", ""):
            answer.enable_compression(web.ContentCoding.gzip)
        return answer


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    app = web.Application()
    app.router.add_get("/metrics", engine.handle)
    async with listening(app) as address:
        engine.port = int(address.rpartition(":")[2])
        yield engine


class Watch:
    """A watch over one process."""

    def __init__(self, port: int, gauges: tuple[str, ...] = GAUGES) -> None:
        self.now_s = 0.0
        self.in_flight = InFlightRequests()
        order = start_order("run", request_gauges=gauges)
        self.record = ProcessRecord(
            instance="i", epoch=1, rank=0, state="running", boot_id="b", order=order, ready=True, port=port
        )
        self.watch = RequestCounter(lambda: (self.record,), self.in_flight, lambda: self.now_s)

    async def scraped(self) -> int | None:
        await self.watch.scrape_all()
        return self.taken()

    def taken(self) -> int | None:
        return self.watch.take([self.record])[ProcessKey("i", 1, 0)].most


@pytest.mark.parametrize("value", ["-1", "1e12", "NaN", "+Inf", "2147483648"])
async def test_u48_an_impossible_gauge_is_unknown_and_counted(engine: Engine, value: str) -> None:
    """An engine that restarts, or counts wrongly, for a moment."""
    watch = Watch(engine.port)
    engine.answer = lambda: web.Response(text=f"vllm:num_requests_running {value}\n")
    assert await watch.scraped() is None
    assert [watch.watch.take_impossible() for _ in range(2)] == [1, 0]
    engine.answer = lambda: web.Response(text="vllm:num_requests_running 0\n")
    await watch.scraped()
    assert await watch.scraped() == 0


async def test_requests_that_came_and_went_are_counted() -> None:
    watch = Watch(1, gauges=())
    for _ in range(3):
        with a_request(watch.in_flight):
            pass
    taken = [watch.watch.take([watch.record])[ProcessKey("i", 1, 0)] for _ in range(2)]
    assert [(one.most, one.arrived) for one in taken] == [(1, 3), (0, 0)]


async def test_the_engines_gauges_are_counted(engine: Engine) -> None:
    watch = Watch(engine.port)
    assert await watch.scraped() == 7
    engine.answer = lambda: web.Response(text="vllm:num_requests_running 0\n")
    await watch.watch.scrape_all()
    assert watch.taken() == 7  # the highest since the last take, which began at 7
    assert await watch.scraped() == 0


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_without_metrics_has_no_requests(engine: Engine, status: int) -> None:
    engine.answer = lambda: web.Response(status=status)
    assert await Watch(engine.port).scraped() == 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=500),
        lambda: web.Response(text="vllm:num_requests_running NaN\n"),
        lambda: web.Response(text="vllm:num_requests_running +Inf\n"),
        lambda: web.Response(body=b"\xff\xfe\n"),
        lambda: web.Response(status=302, headers={"Location": "/elsewhere"}),
    ],
)
async def test_an_unreadable_answer_is_unknown(engine: Engine, answer: Callable[[], web.Response]) -> None:
    engine.answer = answer
    watch = Watch(engine.port)
    assert await watch.scraped() is None
    with a_request(watch.in_flight):
        pass
    assert await watch.scraped() == 1  # the proxy's own count is known


async def test_an_engine_that_was_not_scraped_or_is_gone_is_unknown(unused_port: int) -> None:
    watch = Watch(unused_port)
    assert watch.taken() is None
    assert await watch.scraped() is None


async def test_a_stale_answer_is_unknown(engine: Engine) -> None:
    watch = Watch(engine.port)
    assert await watch.scraped() == 7
    assert watch.taken() == 7
    watch.now_s += module._STALE_S + 1
    assert watch.taken() is None


async def test_without_gauges_the_proxys_peak_counts() -> None:
    watch = Watch(1, gauges=())
    assert await watch.scraped() == 0
    with a_request(watch.in_flight):
        with a_request(watch.in_flight):
            pass
        assert watch.taken() == 2
        assert watch.taken() == 1  # one is still in flight
    assert watch.taken() == 1
    assert watch.taken() == 0


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


async def test_tokens_stand_still_up_to_a_fresh_scrape(engine: Engine) -> None:
    watch, tokens = Watch(engine.port), 10
    order = start_order("run", request_gauges=GAUGES, progress_counters=("vllm:generation_tokens_total",))
    watch.record = replace(watch.record, order=order)
    key = watch.record.key
    engine.answer = lambda: web.Response(text=f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n')
    assert watch.watch.tokens_still(key) is None, "not scraped yet"
    await watch.scraped()
    assert watch.watch.tokens_still(key) == 0
    watch.now_s = 5.0
    await watch.scraped()
    assert watch.watch.tokens_still(key) == 5.0
    watch.now_s, tokens = 10.0, 11
    await watch.scraped()
    assert watch.watch.tokens_still(key) == 0
    engine.answer = lambda: web.Response(status=500)
    watch.now_s = 15.0
    await watch.scraped()
    assert watch.watch.tokens_still(key) == 0, "what a vain scrape missed is unknown"
    watch.now_s = 10.0 + module._STALE_S + 1
    assert watch.watch.tokens_still(key) is None
    engine.answer = lambda: web.Response(text=VLLM)
    await watch.scraped()
    assert watch.watch.tokens_still(key) is None, "the engine counts none"


async def test_our_own_request_for_a_token_is_not_counted(engine: Engine) -> None:
    watch = Watch(engine.port)
    engine.answer = lambda: web.Response(text="vllm:num_requests_running 1\n")
    with watch.watch.probing(watch.record.key):
        assert await watch.scraped() == 0
    await watch.scraped()
    assert await watch.scraped() == 1


async def test_metrics_are_read_of_an_engine_that_packs_them_where_it_may(engine: Engine) -> None:
    """So do vLLM and SGLang, by Prometheus' own application. Nothing is unpacked here."""
    engine.packs = True
    assert await Watch(engine.port).scraped() == 7


@pytest.mark.parametrize("page", [b"\n" * 4 * 2**20, b"vllm:num_requests_running 1\n" * 2**17, b"x" * 5 * 2**20])
async def test_a_page_beyond_its_bounds_is_unknown(engine: Engine, page: bytes) -> None:
    engine.answer = lambda: web.Response(body=page)
    assert await Watch(engine.port).scraped() is None
