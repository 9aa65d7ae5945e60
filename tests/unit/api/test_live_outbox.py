"""What waits on a live socket: in order, in bounds, made when there is room, dropped with its topic."""

import asyncio
from typing import cast

import orjson
import pytest
from aiohttp import web

from controller.api.live_socket import handler as module
from controller.api.live_socket.handler import Outbox

LIMIT_S = 10.0


class Socket:
    """Stands in for a client that reads a message when it is told to."""

    def __init__(self) -> None:
        self._may = asyncio.Semaphore(0)
        self._sending: asyncio.Task[None] | None = None  # ends with the test's loop
        self._sent: asyncio.Queue[tuple[int | None, str]] = asyncio.Queue()
        self.box = Outbox(cast("web.WebSocketResponse", self), None)

    async def send_frame(self, message: bytes, _opcode: int) -> None:
        told = orjson.loads(message)
        await self._may.acquire()
        self._sent.put_nowait((told["id"], told["type"]))

    async def read(self, messages: int) -> list[tuple[int | None, str]]:
        self._sending = self._sending or asyncio.create_task(self.box.send_all())
        for _ in range(messages):
            self._may.release()
        async with asyncio.timeout(LIMIT_S):
            sent = [await self._sent.get() for _ in range(messages)]
        await turns()
        return sent


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def message(type_: str, size: int = 0) -> bytes:
    return orjson.dumps({"type": type_, "text": "x" * size})


async def test_bytes_are_bounded_and_what_is_large_is_made_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1000)
    socket = Socket()
    made: list[int] = []

    def snapshot(number: int) -> bytes:
        made.append(number)
        return message(f"s{number}", 900)

    puts = [asyncio.create_task(socket.box.put(n, lambda n=n: snapshot(n))) for n in range(5)]
    await turns()
    assert made == [0, 1]  # the second one fits on top; the third must wait
    assert await socket.read(2) == [(0, "s0"), (1, "s1")]
    await turns()
    assert made == [0, 1, 2, 3]
    assert await socket.read(3) == [(2, "s2"), (3, "s3"), (4, "s4")]
    await asyncio.wait(puts)
    assert socket.box._bytes == 0


async def test_messages_are_bounded_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    socket = Socket()
    puts = [asyncio.create_task(socket.box.put(n, message("m"))) for n in range(6)]
    await turns()
    assert sum(put.done() for put in puts) == 2
    assert [id_ for id_, _ in await socket.read(6)] == list(range(6))


async def test_a_closed_topic_leaves_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1000)
    socket = Socket()
    await socket.box.put_form(1, type="end")  # of a topic that had this id before: its client waits for it
    await socket.box.put(1, message("a", 900))
    await socket.box.put(2, message("b", 900))
    waiting = asyncio.create_task(socket.box.put(3, message("c")))
    await turns()
    assert not waiting.done()
    socket.box.drop(1)
    async with asyncio.timeout(LIMIT_S):
        await waiting
    assert await socket.read(3) == [(1, "end"), (2, "b"), (3, "c")]
    assert socket.box._bytes == 0


async def test_what_fails_to_be_made_leaves_the_door_open() -> None:
    socket = Socket()

    def fails() -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await socket.box.put(1, fails)
    await socket.box.put(2, message("m"))
    assert await socket.read(1) == [(2, "m")]
