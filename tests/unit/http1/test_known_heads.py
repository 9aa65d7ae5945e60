"""A head that is known needs no parser, and is read as by one; an unusual one is never known."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from http1.protocol import fast_paths as known_heads
from http1.protocol import reader as request_reader
from http1.protocol import reader as response_reader
from http1.protocol.fast_paths import KnownHeads
from http1.protocol.framing import MessageError
from http1.protocol.heads import RequestHead, ResponseHead
from http1.protocol.reader import MessageReader, RequestReader, ResponseReader

START = b"POST /v1/x?a=b HTTP/1.1\r\nHost: a\r\nX-A:  b \r\n"
STATUS = b"HTTP/1.1 200 OK\r\nServer: s\r\n"


class Sink:
    """Notes what a reader hands on."""

    def __init__(self) -> None:
        self.heads: list[Any] = []
        self.seen: list[object] = []

    def request_head(self, head: RequestHead, *, complete: bool) -> None:
        self.heads.append(head)
        self.seen.append(("head", complete, head.take_body()))

    def request_body(self, data: bytes) -> None:
        self.seen.append(data)

    def request_end(self) -> None:
        self.seen.append("end")

    def response_head(self, head: ResponseHead) -> None:
        self.heads.append(head)
        self.seen.append(("head", head.alone))

    def response_body(self, data: bytes, _chunks: bytes = b"") -> None:
        self.seen.append(data)

    def response_end(self, *, clean: bool) -> None:
        self.seen.append(("end", clean))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(request_reader, "_KNOWN_REQUESTS", KnownHeads[RequestHead]())
    monkeypatch.setattr(response_reader, "_KNOWN_RESPONSES", KnownHeads[ResponseHead]())
    return


def request(*chunks: bytes, parser: bool | None = None) -> Sink:
    sink = Sink()
    reader = RequestReader(sink)
    feed(reader, chunks, parser=parser)
    return sink


def answer(*chunks: bytes, parser: bool | None = None, head_only: bool = False) -> Sink:
    sink = Sink()
    reader = ResponseReader(sink)
    reader.expect(head_only=head_only)
    feed(reader, chunks, parser=parser)
    return sink


def feed(reader: MessageReader, chunks: tuple[bytes, ...], *, parser: bool | None) -> None:
    for chunk in chunks:
        reader.feed(chunk)
    assert parser is None or (reader._parser is not None) == parser


def head(length: int, given: bytes = b"", *, end: bytes = b"X-C: d\r\n") -> bytes:
    own = b"x-request-id: %b\r\n" % given if given else b""
    return START + own + b"Content-Length: %d\r\n" % length + end + b"\r\n"


@pytest.mark.parametrize(("first", "second"), [(b"", b""), (b"one", b"another")])
def test_a_request_like_the_last_one_is_read_without_the_parser(first: bytes, second: bytes) -> None:
    request(head(3, first) + b"abc")
    known = request(head(12, second) + b"abcdefghijkl", parser=False)
    request_reader._KNOWN_REQUESTS = KnownHeads()
    parsed = request(head(12, second) + b"abcdefghijkl")
    assert known.seen == parsed.seen == [("head", True, b"abcdefghijkl")]
    assert known.heads == parsed.heads


@pytest.mark.parametrize("cuts", [(0,), (2,), (0, 5), (2, 3, 11)])
def test_its_body_may_come_in_pieces(cuts: tuple[int, ...]) -> None:
    request(head(3) + b"abc")
    body, at = b"abcdefghijkl", (*cuts, 12)
    pieces = [body[start:end] for start, end in itertools.pairwise(at)]
    known = request(head(12) + body[: cuts[0]], *pieces, parser=False)
    assert known.seen == [("head", False, None), *([body[: cuts[0]]] if cuts[0] else []), *pieces, "end"]


def test_what_follows_a_body_is_the_next_request() -> None:
    request(head(3) + b"abc")
    sink = Sink()
    reader = RequestReader(sink)
    reader.feed(head(4) + b"ab")
    reader.feed(b"cd" + head(1) + b"x")
    assert (sink.seen, reader.pipelined) == ([("head", False, None), b"ab", b"cd", "end"], True)


def test_the_beginning_of_a_body_is_handed_on_once_and_uncopied_to_a_sink_that_takes_it() -> None:
    class Taking(Sink):
        def request_head(self, head: RequestHead, *, complete: bool) -> None:
            self.seen.append((complete, head.take_body(), head.take_first()))

    begin = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"
    for sink, first in ((Sink(), ("head", False, None)), (Taking(), (False, None, b"ab"))):
        reader = RequestReader(sink)
        reader.feed(begin + b"abcd")
        reader.busy = False
        sink.seen.clear()
        for data in (begin + b"ab", b"cd"):
            reader.feed(data)
        taken = isinstance(sink, Taking)
        assert sink.seen == [first, *([] if taken else [b"ab"]), b"cd", "end"]
        if taken:
            assert isinstance(sink.seen[0][2], memoryview)  # type: ignore[index]
        else:
            assert sink.heads[-1].first is None, "what was copied is not kept"


def test_a_request_behind_another_is_not_taken_for_it() -> None:
    """Both come at once, and the first is answered before the second is read, as a refusal is."""

    class Refusing(Sink):
        def request_head(self, head: RequestHead, *, complete: bool) -> None:
            super().request_head(head, complete=complete)
            reader.busy = False

    one = b"POST /a HTTP/1.1\r\nHost: one\r\nAuthorization: Bearer A\r\nContent-Length: 2\r\n\r\n{}"
    other = b"DELETE /b HTTP/1.1\r\nHost: two\r\nAuthorization: Bearer B\r\nContent-Length: 2\r\n\r\n[]"
    reader = RequestReader(Refusing())
    reader.feed(one + other)
    (victim,) = request(one).heads
    assert (victim.method, victim.target, victim.named[b"authorization"]) == (b"POST", b"/a", b"Bearer A")


def test_an_answer_behind_an_informational_one_is_not_taken_for_it() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\ncontent-length: 2\r\n\r\n"
    answer(early + b"HTTP/1.1 404 X\r\nset-cookie: a\r\ncontent-length: 2\r\n\r\nno")
    found = answer(early + STATUS + b"Content-Length: 2\r\n\r\nhi")
    assert [one.status for one in found.heads] == [200]
    assert b"hi" in found.seen


@pytest.mark.parametrize("line", [b"GET /v1/x?a=b HTTP/1.1", b"POST /v1/y HTTP/1.1", b"POST /v1/x?a=b HTTP/1.0"])
@pytest.mark.parametrize("fields", [b"Host: a\r\nX-A:  b \r\n", b"Host: b\r\nX-A:  b \r\n", b"X-A: b\r\nHost: a\r\n"])
def test_only_what_the_bytes_say_is_learned(line: bytes, fields: bytes) -> None:
    (parsed,) = request(head(0)).heads
    known: KnownHeads[RequestHead] = KnownHeads()
    known.learn(line + b"\r\n" + fields + b"Content-Length: 0\r\nX-C: d\r\n\r\n", parsed)
    assert not known._known


@pytest.mark.parametrize(
    "unusual",
    [
        START + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc",
        START + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        START.replace(b"1.1", b"1.0") + b"Content-Length: 3\r\nConnection: keep-alive\r\n\r\nabc",
        START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"x-request-id: a\r\nX-B: c\r\nx-request-id: d\r\nContent-Length: 3\r\n\r\nabc",
        START + b"x-request-id: a\r\nX-B: c\r\nContent-Length: 3\r\n\r\nabc",
        START + b"Content-Length: 3 \r\n\r\nabc",
        b"\r\n" + START + b"Content-Length: 3\r\n\r\nabc",
        START + b"X-Long: %b\r\nContent-Length: 3\r\n\r\nabc" % (b"x" * 5000),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_no_unusual_head_is_kept(unusual: bytes) -> None:
    request(unusual)
    assert request_reader._KNOWN_REQUESTS.find(unusual) is None


@pytest.mark.parametrize(
    "value", [b"3\r\nContent-Length: 4", b"3\r\nTransfer-Encoding: chunked", b"+3", b"1_0", b"", b"3,3"]
)
def test_what_smuggles_is_refused_also_where_the_head_is_known(value: bytes) -> None:
    request(head(3) + b"abc")
    with pytest.raises(MessageError):
        request(head(3).replace(b"Length: 3", b"Length: " + value) + b"abc")


def test_the_place_of_what_varies_counts() -> None:
    request(head(3) + b"abc")
    moved = START + b"X-C: d\r\nContent-Length: 3\r\n\r\n"
    assert request_reader._KNOWN_REQUESTS.find(moved) is None


def test_what_was_worked_out_for_a_head_serves_those_like_it() -> None:
    first, second = (request(head(3, given) + b"abc").heads[0] for given in (b"a", b"b"))
    other = request(head(3, b"a", end=b"X-C: e\r\n") + b"abc").heads[0]
    assert first.alike is second.alike
    assert first.alike is not other.alike


def test_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "_MOST", 2)
    ends = [b"X-C: %d\r\n" % number for number in range(3)]
    for end in ends:
        request(head(3, end=end) + b"abc")
    assert [request_reader._KNOWN_REQUESTS.find(head(3, end=end)) is not None for end in ends] == [False, True, True]


@pytest.mark.parametrize(
    ("chunks", "seen"),
    [
        ((b"%bContent-Length: 2\r\n\r\nab",), [("head", False), b"ab", ("end", True)]),
        ((b"%bContent-Length: 0\r\n\r\n",), [("head", False), ("end", True)]),
        ((b"%bContent-Length: 4\r\n\r\n", b"ab", b"cd"), [("head", True), b"ab", b"cd", ("end", True)]),
        ((b"%bContent-Length: 4\r\n\r\nab", b"cdef"), [("head", False), b"ab", b"cd", ("end", False)]),
    ],
)
def test_a_response_like_the_last_one_is_read_without_the_parser(chunks: tuple[bytes, ...], seen: list[object]) -> None:
    chunks = (chunks[0] % STATUS, *chunks[1:])
    answer(STATUS + b"Content-Length: 1\r\n\r\nx")
    assert answer(*chunks, parser=False).seen == seen
    response_reader._KNOWN_RESPONSES = KnownHeads()
    assert answer(*chunks).seen == seen


def test_a_response_that_goes_on_beyond_its_length_spoils_the_connection() -> None:
    answer(STATUS + b"Content-Length: 1\r\n\r\nx")
    assert answer(STATUS + b"Content-Length: 1\r\n\r\nxy").seen == [("head", False), b"x", ("end", False)]


def test_a_known_length_says_nothing_of_an_answer_to_head() -> None:
    answer(STATUS + b"Content-Length: 1\r\n\r\nx")
    assert answer(STATUS + b"Content-Length: 9\r\n\r\n", head_only=True).seen == [("head", False), ("end", True)]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_is_not_kept(status: bytes) -> None:
    bodiless = STATUS.replace(b"200 OK", status) + b"Content-Length: 3\r\n\r\n"
    answer(bodiless)
    assert response_reader._KNOWN_RESPONSES.find(bodiless) is None


IDS = (b"", b"a1", b"a-b.c_d", b"~!", b"x" * 128, b"x" * 129, b"a b", b"\xe9", b"a\tb")
LENGTHS = (b"3", b"003", b"0", b"3 ", b" 3", b"+3", b"3\r\nX-D: e", b"3\r\nContent-Length: 3", b"000000000000000003")


@pytest.mark.parametrize("second", [head(3, one) for one in IDS] + [head(3, end=b""), head(3, end=b"X-C: e\r\n")])
@pytest.mark.parametrize("length", LENGTHS)
def test_on_one_connection_each_head_is_read_as_by_the_parser(second: bytes, length: bytes) -> None:
    second = second.replace(b"Length: 3", b"Length: " + length) + b"abc"
    firsts = (head(3) + b"abc", head(4, b"q") + b"abcd")
    request(*firsts[:1])
    request(*firsts[1:])
    for first in firsts:
        alone, behind = read_in_turn(second), read_in_turn(first, first, second)
        assert behind[2:] == alone, "what the connection knows makes no difference"
    request_reader._KNOWN_REQUESTS = KnownHeads()
    assert read_in_turn(second) == alone


def read_in_turn(*messages: bytes) -> list[object]:
    """What one reader makes of each message, once the one before is answered."""
    sink, seen = Sink(), list[object]()
    reader = RequestReader(sink)
    for message in messages:
        sink.heads.clear()
        sink.seen.clear()
        try:
            reader.feed(message)
        except MessageError as error:
            seen.append((error.status, error.code))
        else:
            seen.append((sink.heads[:], sink.seen[:]))
        reader.busy = False
    return seen
