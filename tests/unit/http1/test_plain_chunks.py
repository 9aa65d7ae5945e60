"""Chunks that come whole are read without the parser, as by it, however the stream is cut."""

import random
from typing import Any

import pytest

from http1.protocol.fast_paths import content_of
from http1.protocol.framing import MessageError
from http1.protocol.heads import ResponseHead
from http1.protocol.reader import _CHUNKED_HEAD, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Sink:
    """Keeps the body and what follows from the answer."""

    def __init__(self) -> None:
        self.body = b""
        self.pieces: list[tuple[bytes, bytes]] = []
        self.seen: list[object] = []

    def response_head(self, head: ResponseHead) -> None:
        self.seen.append(head.status)

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        self.body += data
        self.pieces.append((data, chunks))

    def response_end(self, *, clean: bool) -> None:
        self.seen.append(clean)


class Reader(ResponseReader):
    """Notes what its parsers are fed."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.fed: list[bytes] = []

    def _new_parser(self) -> Any:
        return Parser(super()._new_parser(), self.fed)


class Parser:
    """A parser that notes what it is fed."""

    def __init__(self, parser: Any, fed: list[bytes]) -> None:
        self.fed = fed
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        self.fed.append(data)
        self._parser.feed_data(data)


def read(*cuts: bytes) -> tuple[Sink, Reader]:
    sink = Sink()
    reader = Reader(sink)
    reader.expect()
    try:
        for data in cuts:
            reader.feed(data)
    except MessageError as error:
        sink.seen.append(str(error))
    return sink, reader


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"5\r\nhello\r\n", b"hello"),
        (b"005\r\nhello\r\n", b"hello"),
        (b"A\r\n0123456789\r\n", b"0123456789"),
        (b"5\r\nhello\r\n1\r\nx\r\n", b"hellox"),
        (b"3\r\n\r\n\r\r\n", b"\r\n\r"),
        *(
            (odd, None)
            for odd in (b"", b"\r\n", b"\r\n\r\n", b"5", b"5\r\n", b"5\r\nhel", b"5\r\nhello", b"5\r\nhello\r")
        ),
        *((odd, None) for odd in (b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n1", b"5\r\nhellox\r\n")),
        *((odd, None) for odd in (b"5;a=b\r\nhello\r\n", b" 5\r\nhello\r\n", b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n")),
        *(
            (odd, None)
            for odd in (b"5\nhello\n", b"5\r\nhello\n\n", b"1_0\r\n0123456789abcdef\r\n", b"-5\r\nhello\r\n")
        ),
        (b"0000005\r\nhello\r\n", None),
    ],
)
def test_what_whole_chunks_hold(data: bytes, content: bytes | None) -> None:
    assert content_of(data) == content


@pytest.mark.parametrize("first", [HEAD, HEAD + b"5\r\nfirst\r\n"])
@pytest.mark.parametrize("last", [LAST, b"1\r\nc\r\n" + LAST])
def test_a_stream_of_whole_chunks_has_no_parser(first: bytes, last: bytes) -> None:
    sink, reader = read(first, b"5\r\nhello\r\n", b"1\r\na\r\n1\r\nb\r\n")
    assert reader._parser is None
    assert sink.pieces[-2:] == [(b"hello", b"5\r\nhello\r\n"), (b"ab", b"1\r\na\r\n1\r\nb\r\n")]
    before = sink.body
    reader.feed(last)
    assert (sink.seen, reader.fed) == ([200, True], [first])
    assert sink.body == before + last[3:-7]
    reader.expect()
    reader.feed(HEAD.replace(b"200", b"201"))
    reader.feed(b"1\r\nx\r\n")
    assert (sink.seen, sink.body[-1:]) == ([200, True, 201], b"x")


def test_from_the_first_odd_chunk_on_the_parser_reads() -> None:
    rest = (b"5;a=b\r\nhel", b"lo\r\n", b"5\r\nhello\r\n", LAST)
    sink, reader = read(HEAD, b"1\r\na\r\n", *rest)
    assert reader.fed == [HEAD, _CHUNKED_HEAD, *rest]
    assert (sink.body, sink.seen) == (b"ahellohello", [200, True])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"5\r\nfirst\r\n",
        HEAD + b"5\r\nfir",
        HEAD + b"5\r\n",
        HEAD + b"5",
    ],
)
def test_where_the_parser_stands_elsewhere_it_reads_all(head: bytes) -> None:
    _, reader = read(head, b"1\r\na\r\n")
    assert reader.fed == [head, b"1\r\na\r\n"]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_where_no_body_is_allowed_none_passes(status: bytes) -> None:
    sink, _ = read(HEAD.replace(b"200 OK", status), b"5\r\nhello\r\n")
    assert sink.body == b""


def test_an_answer_without_chunks_is_not_read_as_some() -> None:
    sink, _ = read(HEAD.replace(b"Transfer-Encoding: chunked\r\n", b""), b"5\r\nhello\r\n")
    assert sink.pieces == [(b"5\r\nhello\r\n", b"")]


def streams(dice: random.Random) -> list[bytes]:
    """A stream of chunks, some of them odd, cut at its chunks' ends and, now and then, elsewhere."""
    odd = [
        b"3;x=y\r\nabc\r\n",
        b"03\r\nabc\r\n",
        b"\r\n",
        b"3\nabc\n",
        b"zz\r\n",
        b"3\r\nabcd\r\n",
        b"4\r\n\r\n\r\n\r\n",
    ]
    cuts = [HEAD]
    for _ in range(dice.randrange(9)):
        content = bytes(dice.choices(b"ab\r\n5", k=dice.randint(1, 20)))
        chunk = dice.choice(odd) if dice.random() < 0.1 else b"%x\r\n%b\r\n" % (len(content), content)
        if dice.random() < 0.3:
            cuts[-1] += chunk
        elif dice.random() < 0.3:
            at = dice.randint(1, len(chunk))
            cuts += [chunk[:at], chunk[at:]] if chunk[at:] else [chunk]
        else:
            cuts.append(chunk)
    return [*cuts, dice.choice((LAST, b"0\r\nA: b\r\n\r\n", LAST + b"HTTP", b"0\r\n"))]


@pytest.mark.parametrize("seed", range(4))
def test_it_reads_as_the_parser_does(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - repeatable
    without = 0
    for _ in range(500):
        cuts = streams(dice)
        ours, reader = read(*cuts)
        theirs, _ = read(b"HTTP/1.1 103 Early Hints\r\n\r\n", *cuts)  # with which the parser reads all
        assert (ours.body, ours.seen) == (theirs.body, theirs.seen), cuts
        for data, chunks in ours.pieces:
            assert not chunks or read(HEAD, chunks)[0].body == data
        without += sum(fed in cuts for fed in reader.fed) < len(cuts)
    assert without > 250
