"""How logs are merged: what one that hangs costs the others, what a slow client costs in memory, and restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from sys import getsizeof

import aiohttp
import pytest
from aiohttp import web

from controller.api.agent_proxies import AgentProxies
from controller.api.merged_logs import merge as merging
from controller.api.merged_logs import source
from controller.api.merged_logs.frames import (
    CaughtUp,
    End,
    FrameReader,
    Item,
    Line,
    LogItem,
    Note,
    Write,
    as_json,
    as_text,
)
from controller.api.merged_logs.merge import Merge
from controller.api.merged_logs.source import HELD_BYTES, LogReading, size_of
from controller.store.access.proxy_secrets import StoredProxySecret
from controller.store.access.secret_keys import NO_KEYS
from controller.store.views.instances import LogSource
from controller.store.views.logs import DeploymentLogs, InstanceLog
from schemas.wire import TIMED_LOG
from support.loopback import listening

LIMIT_S = 20.0
LONG = 60_000
LIES = {  # numbers that no time and no position has
    "lies-line": b"L%d 1 0 late\nC\n" % 10**17,
    "lies-digits": b"L%b 1 0 late\nC\n" % (b"9" * 400),
    "lies-before": b"L-99999999999999999 1 0 early\nC\n",
    "lies-position": b"L1 1 %d far\nC\n" % 2**70,
    "lies-end": b'L1 1 0 one\nC\nE{"exit_code": 0, "at_ms": 9007199254740993000}\n',
}
PIECES = {  # before it hangs
    "past": [b"L1 1 0 one\nC\n" + b"C\n" * 1000 + b"E{}\n" * 1000, b"L2 1 9 two\n"],
    "ticks": [b"C\n" * 2**14] * 64,
    "blank": [b"L1 1 1 \n" * 2**12] * 64,
}
_NOTHING = DeploymentLogs((), lives=True)


class Agent:
    """One agent with several logs: `hangs` sends a head and no more, `writes` ten lines a second, `ends` at once."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": TIMED_LOG})
        await response.prepare(request)
        match request.match_info["instance"].split("-")[0]:
            case "hangs":
                await asyncio.Event().wait()
            case "writes":
                await response.write(b"C\n")
                for n in range(10_000):
                    await response.write(b"L%d 1 %d line %d\n" % (1000 * n, n, n))
                    await asyncio.sleep(0.02)
            case "floods":
                for n in range(1000):
                    await response.write(b"L%d 1 %d %b\n" % (n, n * LONG, b"x" * LONG))
                    self.sent_bytes += LONG
            case "past" | "ticks" | "blank" as name:
                for piece in PIECES[name]:
                    await response.write(piece)
                await asyncio.Event().wait()
            case "lies":
                await response.write(LIES[request.match_info["instance"]])
            case _:
                await response.write(b'L1 1 0 one\nC\nE{"exit_code": 0}\n')
        return response


@asynccontextmanager
async def agent() -> AsyncIterator[tuple[Agent, str, AgentProxies]]:
    double, app = Agent(), web.Application()
    app.router.add_get("/logs/{instance}", double.answer)
    async with listening(app) as address, aiohttp.ClientSession() as session:
        yield double, address, AgentProxies(session, NO_KEYS)


def log_of(instance: str, address: str, epoch: int = 1) -> InstanceLog:
    return InstanceLog(instance, 0, epoch, LogSource("w", "ready", address, StoredProxySecret("w", "s")))


async def test_a_log_that_hangs_holds_the_others_up_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STALLED_S", 0.5)
    come = asyncio.Event()

    async def emit(told: list[LogItem]) -> None:
        if any(one.log.instance == "writes" for one in told):
            come.set()

    async def look() -> DeploymentLogs:
        return _NOTHING

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        merge = Merge(proxies, {"follow": "1"}, emit, look)
        running = asyncio.create_task(merge.run([log_of("hangs", address), log_of("writes", address)]))
        await come.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_log_that_is_not_taken_holds_few_bytes_and_loses_none() -> None:
    async with agent() as (double, address, proxies), asyncio.timeout(LIMIT_S):
        one = LogReading(log_of("floods", address), asyncio.Event(), resumes=False)
        running = asyncio.create_task(one.run(proxies, {}))
        before = -1
        while before != double.sent_bytes:  # until the agent waits
            before = double.sent_bytes
            await asyncio.sleep(0.5)
        assert HELD_BYTES <= one.held_bytes <= 4 * HELD_BYTES
        assert double.sent_bytes < 1000 * LONG
        lines = 0
        while not one.is_done:
            one.take()
            while one.held:
                item = one.pop()
                assert isinstance(item, Line)
                assert item.position == lines * LONG
                lines += 1
            await asyncio.sleep(0)
        assert (lines, one.held_bytes) == (1000, 0)
        await running


async def test_repeated_words_that_all_has_come_are_not_held() -> None:
    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        one = LogReading(log_of("ticks", address), asyncio.Event(), resumes=False)
        running = asyncio.create_task(one.run(proxies, {}))
        while not one._arrivals:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert [*map(type, one._arrivals)] == [CaughtUp]
        assert one.held_bytes == size_of(CaughtUp())
        one.take()
        assert (one.state, one.held_bytes) == ("live", 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_read_behind_the_end() -> None:
    told: list[LogItem] = []

    async def emit(items: list[LogItem]) -> None:
        told.extend(items)

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        await Merge(proxies, {}, emit).run([log_of("past", address)])
    assert [type(one.item) for one in told] == [Line, End]


@pytest.mark.parametrize("item", [Line(b"x"), CaughtUp(), End(), End(reason="x" * 5000), Note("a", "b" * 5000)])
def test_an_item_counts_what_it_takes(item: Item) -> None:
    taken = getsizeof(item) + sum(getsizeof(getattr(item, name, None)) for name in ("text", "reason", "message"))
    assert size_of(item) >= taken - 3 * getsizeof("")


async def test_items_come_no_faster_than_their_log_may_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a million lines without text, in 2 MiB."""
    monkeypatch.setattr(source, "_BURST_BYTES", 2**20)
    monkeypatch.setattr(source, "_BYTES_PER_S", 2**20)
    come = 0

    async def emit(told: list[LogItem]) -> None:
        nonlocal come
        come += len(told)

    async with agent() as (_, address, proxies):
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await Merge(proxies, {}, emit).run([log_of("blank", address)])
    assert come <= 4 * 2**20 // 200


async def test_one_slice_of_a_log_is_read_between_two_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    reads = FrameReader.feed

    def feed(reader: FrameReader, chunk: bytes) -> list[Item]:
        fed.append(len(chunk))
        return reads(reader, chunk)

    monkeypatch.setattr(FrameReader, "feed", feed)
    turns = 0

    async def emit(_: list[LogItem]) -> None:
        pass

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        merging_logs = asyncio.create_task(Merge(proxies, {}, emit).run([log_of("floods", address)]))
        while not merging_logs.done():
            turns += 1
            await asyncio.sleep(0)
    assert max(fed) <= 8 * 2**10
    assert turns >= len(fed)


async def test_batches_are_bounded_in_bytes() -> None:
    sizes: list[int] = []

    async def emit(told: list[LogItem]) -> None:
        sizes.append(sum(len(one.item.text) for one in told if isinstance(one.item, Line)))

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        await Merge(proxies, {}, emit).run([log_of("floods", address)])
    assert sum(sizes) == 1000 * LONG
    assert max(sizes) <= merging._BATCH_BYTES + LONG


async def test_restarts_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_REFRESH_S", 0.02)
    epochs: list[int] = []

    async def emit(told: list[LogItem]) -> None:
        epochs.extend(one.log.epoch for one in told if isinstance(one.item, Line))

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):

        async def look() -> DeploymentLogs:
            epoch = epochs[-1] + 1 if epochs else 1
            return DeploymentLogs((log_of("ends", address, min(epoch, 30)),), lives=epoch <= 30)

        merge = Merge(proxies, {"follow": "1"}, emit, look)
        await merge.run([log_of("ends", address)])
        assert epochs == list(range(1, 31)), "each start once"
        assert len(merge._readings) <= 2


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("form", [as_json, as_text(names=True, ranks=True, timestamps=True)], ids=["json", "text"])
async def test_numbers_that_no_log_has_end_that_log_alone(lie: str, form: Write) -> None:
    written: list[bytes] = []

    async def emit(told: list[LogItem]) -> None:
        written.append(form(told))

    async with agent() as (_, address, proxies), asyncio.timeout(LIMIT_S):
        await Merge(proxies, {}, emit).run([log_of(lie, address), log_of("ends", address)])
    assert b"one" in b"".join(written)
