"""The log of a container: bounded in memory, and read anew when its connection may be dead."""

import asyncio
import threading
from pathlib import Path

import pytest
from aiohttp import web

from agent.containers import log_copy
from agent.containers.log_copy import MOST_BYTES, LogCopy, LogFollow
from support.docker.fake_engine import engine_that

PIECE = 2**19


def frame(text: bytes, time: bytes = b"2026-11-22T21:40:00.5Z ") -> bytes:
    return b"\x01\0\0\0" + (len(time) + len(text)).to_bytes(4, "big") + time + text


async def test_a_stream_that_falls_silent_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "_SILENT_S", 0.2)
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/logs"):
            return web.json_response([])
        asked.append(request.query["since"])
        if len(asked) == 1:  # no answer at all, as of a Docker that hangs
            await asyncio.sleep(60)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(frame(b"said\n"))
        if len(asked) == 2:  # as of a dead connection
            await asyncio.sleep(60)
        await response.write(frame(b"and more\n", b"2026-11-22T21:40:01Z "))
        return response

    async with engine_that(tmp_path, answer) as engine:
        follow = LogFollow(engine, "c", LogCopy(tmp_path / "1-0.log"))
        running = asyncio.create_task(follow.run())
        follow.begin()
        async with asyncio.timeout(20):
            while len(asked) < 3:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.02)
        follow.end()
        async with asyncio.timeout(20):
            await running
    assert (tmp_path / "1-0.log").read_text() == "said\nand more\n"


class SlowCopy(LogCopy):
    """A disk that takes nothing for a while."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.may_write = threading.Event()

    def write(self, pieces: list[bytes]) -> None:
        self.may_write.wait(20)
        super().write(pieces)


async def test_what_is_held_is_bounded_by_bytes(tmp_path: Path) -> None:
    pieces, sent = 40, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/logs"):
            return web.json_response([])
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(pieces):
            await response.write(frame(bytes([65 + number % 26]) * PIECE, b"2026-11-22T21:40:%02dZ " % number))
        sent.set()
        return response

    async with engine_that(tmp_path, answer) as engine:
        copy = SlowCopy(tmp_path / "1-0.log")
        follow = LogFollow(engine, "c", copy)
        follow.begin()
        follow.end()
        running = asyncio.create_task(follow.run())
        async with asyncio.timeout(20):
            while follow.held_bytes < MOST_BYTES:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert follow.held_bytes < MOST_BYTES + 2 * PIECE
        assert not sent.is_set(), "Docker is not read any further"
        copy.may_write.set()
        async with asyncio.timeout(20):
            await running
    assert (tmp_path / "1-0.log").stat().st_size == pieces * PIECE


async def test_of_a_huge_piece_the_beginning_is_kept_and_the_next_is_found(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/logs"):
            return web.json_response([])
        return web.Response(body=frame(b"x" * (3 * 2**20)) + frame(b"next\n", b"2026-11-22T21:40:01Z "))

    async with engine_that(tmp_path, answer) as engine:
        got = [piece async for piece in engine.log("c", "0", 20.0)]
    assert [len(piece) for piece in got[:1]] == [2**20]
    assert got[1].endswith(b"next\n")
