"""A WebSocket's bytes are read within their budget, also those of frames that end no message."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.runtime.paced_socket import pace
from controller.runtime.rate import Rate

EMPTY_FRAGMENT = b"\x00\x80\x00\x00\x00\x00"  # of a message that does not end
BURST_BYTES, BYTES_PER_S = 64 * 1024, 256 * 1024
READ_BYTES = 256 * 1024  # at most, at once


@pytest.mark.parametrize(("amounts", "wait_s"), [((10,), 0.0), ((10, 1), 0.5), ((30,), 10.0)])
def test_the_rate(amounts: tuple[int, ...], wait_s: float) -> None:
    rate, waits = Rate(0.0, burst=10, per_s=2.0), 0.0
    for amount in amounts:
        waits = rate.take(0.0, amount)
    assert waits == pytest.approx(wait_s)
    assert rate.take(100.0, 10) == 0.0, "it fills up again"


class Counting:
    """Stands where aiohttp's protocol is fed, and counts."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def before(self, request: web.Request) -> None:
        inner = request.protocol._payload_parser
        outer = self

        class Parser:
            def feed_data(self, data: bytes) -> tuple[bool, bytes]:
                outer.read_bytes += len(data)
                return inner.feed_data(data)  # type: ignore[no-any-return,union-attr]

            def feed_eof(self) -> None:
                inner.feed_eof()  # type: ignore[union-attr]

        request.protocol._payload_parser = Parser()  # type: ignore[assignment]


async def test_a_message_without_end_is_read_no_faster() -> None:
    counting = Counting()

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        pace(request, burst_bytes=BURST_BYTES, bytes_per_s=BYTES_PER_S)
        counting.before(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(server.make_url("/"), max_msg_size=0) as honest:
            await honest.send_str("a")
            assert await honest.receive_str(timeout=5) == "a"
        async with session.ws_connect(server.make_url("/")) as flooding:
            transport = flooding._writer.transport
            assert transport is not None
            counting.read_bytes = 0
            transport.write(b"\x01" + EMPTY_FRAGMENT[1:])
            transport.write(EMPTY_FRAGMENT * 500_000)  # 3 MB, read within milliseconds where nothing holds them back
            await asyncio.sleep(0.5)
            assert 0 < counting.read_bytes <= BURST_BYTES + READ_BYTES + BYTES_PER_S
            transport.abort()
