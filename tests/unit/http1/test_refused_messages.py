"""What a server refuses of a request's head and body, with which answer, and what odd bodies it takes."""

import pytest

from http1.protocol.framing import MessageError
from http1.protocol.states import State
from support.http1.server_world import POST, World


@pytest.fixture
async def world() -> World:
    return World()


REFUSED = {
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n": 400,
    b"GET / HTTP/1.1\nHost: a\n\n": 400,
    b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n": 400,
    b"GET /\r\n\r\n": 505,
    b"GET / HTTP/2.0\r\nHost: a\r\n\r\n": 505,
    b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n": 501,
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n": 501,
    b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 200 + b"\r\n": 431,
    b"GET / HTTP/1.1\r\nHost: a\r\nb: " + b"c" * 70_000: 431,
    b"GET / HTTP/1.1\r\nHost: a\r\nb: " + b"c" * 70_000 + b"\r\n\r\n": 431,
    b"GET /" + b"c" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n": 431,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": 400,
}


@pytest.mark.parametrize(("data", "status"), REFUSED.items(), ids=range(len(REFUSED)))
async def test_what_is_refused(data: bytes, status: int, world: World) -> None:
    world.transport.receive(data)
    assert not world.requests
    assert world.transport.written.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in world.transport.written
    assert world.connection.state is State.LINGERING


async def test_a_body_that_is_malformed_ends_its_request(world: World) -> None:
    world.transport.receive(POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"zz\r\n")
    assert (world.request.lost, world.request.ended) == (1, 0)
    assert world.transport.written.startswith(b"HTTP/1.1 400 ")


async def test_trailers_and_extensions_without_end_are_refused(world: World) -> None:
    head = POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked")
    world.transport.receive(head + b"1\r\na\r\n0\r\n")
    for n in range(200):
        world.transport.receive(b"t%d: v\r\n" % n)
    assert (world.request.lost, world.connection.state) == (1, State.LINGERING)
    extended = World()
    extended.transport.receive(head + b"1;a=")
    for _ in range(20):
        extended.transport.receive(b"x" * 5000)
    assert (extended.request.lost, extended.connection.state) == (1, State.LINGERING)


@pytest.mark.parametrize(
    ("frame", "least", "most"), [(b"1\r\nx\r\n", 0.2, 0.3), (b"1;" + b"a" * 60_000 + b"\r\nx\r\n", 0, 0.1)]
)
async def test_a_body_that_is_mostly_frames_is_refused(frame: bytes, least: float, most: float, world: World) -> None:
    world.transport.receive(POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"))
    while world.connection.state is State.RECEIVING:
        world.transport.receive(frame * (1 + 60_000 // len(frame)))
    assert least * 2**20 <= len(world.request.received) <= most * 2**20
    assert world.request.lost == 1
    assert world.transport.written.startswith(b"HTTP/1.1 400 ")


async def test_a_large_body_in_small_chunks_is_read(world: World) -> None:
    world.transport.receive(POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"))
    for _ in range(400):
        world.transport.receive(b"8\r\nabcdefgh\r\n" * 1000)
    world.transport.receive(b"0\r\n\r\n")
    assert (len(world.request.received), world.request.ended) == (3_200_000, 1)


def test_errors_of_messages_say_what_to_answer() -> None:
    error = MessageError(431, "head_too_large", "text")
    assert (error.status, error.code, str(error)) == (431, "head_too_large", "text")
