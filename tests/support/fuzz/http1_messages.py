"""HTTP/1.1 messages in both directions: how the bytes are cut makes no difference, and h11 reads what we take alike.

The first byte says what is read: an odd one a stream of requests, an even one the response to one request. The second
one is the size of the pieces.
"""

import re
from typing import Final

from http1.protocol import heads as head
from http1.protocol import reader as request_reader
from http1.protocol import reader as response_reader
from support.builders.bounds import bounded
from support.http1 import oracle, responses

# It goes nowhere from here.
_ODD_PHRASE: Final = re.compile(rb"HTTP/[0-9]\.[0-9] [0-9]{3}[^\r\n]*[\0-\x08\x0b-\x1f\x7f]")
WORDS: Final = (
    "GET / HTTP/1.1\r\n", "POST /x HTTP/1.1\r\n", "099",
    "HTTP/1.0\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\n", "Host: a\r\n", "Content-Length: ", "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n", "Connection: Upgrade\r\n", "Upgrade: websocket\r\n", "X-Request-Id: a\r\n", "http://b/",
    "Expect: 100-continue\r\n", "\r\n", "\r\n\r\n", "0\r\n\r\n", "5\r\nhello\r\n", ";a=b", " ", "\t", "\r", "\n", "204",
    "304",
)  # fmt: skip


def check(data: bytes) -> None:
    """The stream is read, or refused with a status, alike however it is cut; h11 agrees where we take it."""
    stream, size = data[2:], data[1] if len(data) > 1 else 0
    if not stream:
        return
    pieces = [stream[at : at + (size or 1)] for at in range(0, len(stream), size or 1)]
    request_reader._KNOWN_REQUESTS._known.clear()  # so that a finding does not depend on what was read before
    response_reader._KNOWN_RESPONSES._known.clear()
    if data[0] & 1:
        _requests(stream, pieces)
    else:
        _response(
            stream, pieces, responses.Asked(*(bool(data[0] & bit) for bit in (2, 4, 8))), closed=bool(data[0] & 16)
        )


def _cuts(stream: bytes, pieces: list[bytes]) -> list[list[bytes]]:
    """The stream cut in other ways."""
    return [[stream], [bytes([byte]) for byte in stream], [stream], pieces]


def _requests(stream: bytes, pieces: list[bytes]) -> None:
    with bounded():
        our = oracle.ours(pieces)
    for cut in _cuts(stream, pieces):
        assert oracle.ours(cut) == our, "the cuts make a difference"
    verdict = oracle.verdict(our, oracle.theirs(pieces))
    excused = verdict == "laxer" and oracle.has_wide_line(pieces)
    assert excused or verdict in ("same", "stricter"), (verdict, our, oracle.theirs(pieces))
    _written_again(our)


def _written_again(seen: oracle.Seen) -> None:
    """What an intermediary would write of the first request is read as that request."""
    if len(seen) < 2 or seen[0][0] != "head" or ("end",) not in seen[:3]:
        return
    _, method, target, fields = seen[0]
    if b"host" not in dict(fields):  # of HTTP/1.0
        return
    whole = seen[: seen.index(("end",)) + 1]
    body = whole[1][1] if whole[1][0] == "body" else b""
    chunked = (b"transfer-encoding", b"chunked") in fields
    framed = (head.chunk(body) if body else b"") + head.LAST_CHUNK if chunked else body
    assert oracle.ours([head.request_bytes(method, target, fields) + framed]) == whole, "it is written otherwise"


def _response(stream: bytes, pieces: list[bytes], asked: responses.Asked, *, closed: bool) -> None:
    with bounded():
        our = responses.ours(pieces, asked, closed=closed)
    for cut in _cuts(stream, pieces):
        assert responses.ours(cut, asked, closed=closed) == our, "the cuts make a difference"
    if our.how == "whole" and not _ODD_PHRASE.search(stream):
        their = responses.theirs(pieces, asked, closed=closed)
        assert their == our, (our, their)
        _leaves_the_same(stream, asked, closed=closed)


def _leaves_the_same(stream: bytes, asked: responses.Asked, *, closed: bool) -> None:
    """What follows the response is known: it spoils the connection, or is of the other protocol."""
    our, their = (read([stream], asked, closed=closed) for read in (responses.ours, responses.theirs))
    if our.status == head.SWITCHING:
        assert our.rest == their.rest
    elif not closed:
        assert our.clean == (not their.rest), (our, their)
