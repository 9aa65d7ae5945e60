"""Random byte streams of HTTP/1.1 requests, and what h11 and our reader make of them."""

import random
import re
from dataclasses import dataclass, field

import h11

from http1.protocol.framing import MessageError
from http1.protocol.heads import RequestHead
from http1.protocol.reader import RequestReader

Seen = list[tuple[object, ...]]
ERROR = ("error",)
METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"get", b"FOO", b"G T")
TARGETS = (b"/", b"/v1/x?a=b", b"*", b"http://a/b", b"/%00", b"/a b", b"/\xc3\xa9", b"//x")
FIELDS = (
    *(b"X: y", b"A:b", b"A:  b  ", b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue"),
    *(b"X-Y_z: \t q", b"B:", b"C: c", b"x y: z", b"C: a\x00b", b"D : e", b" fold", b"E: \x01", b": v"),
)
LENGTHS = (b"+3", b"3,3", b"0x3", b" 3", b"-1", b"", b"3 3", b"99999999999999999999999")
CODINGS = (*[b"chunked"] * 8, b"Chunked", b"gzip, chunked", b"identity", b"chunked, chunked")
# Offers of other protocols, which are ignored; a WebSocket's GET alone is none of them.
OFFERS = (
    [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"],
    [b"Connection: upgrade", b"Upgrade: TLS/1.0, h2c"],
    [b"Connection: keep-alive, Upgrade", b"Upgrade: x"],
    [b"Upgrade: h2c"],
)
USUAL_FIELDS = 9
_ABSOLUTE = re.compile(rb"(?i)https?://([^/?#]*)([^#]*)")
_WIDE_LINE = re.compile(rb"[A-Z]+ +\S+  +HTTP/1|[A-Z]+  +\S+ +HTTP/1")


@dataclass
class Sink:
    """Notes what the reader hands on. It answers each request at once."""

    seen: Seen = field(default_factory=list)
    reader: RequestReader | None = None
    keep_alive: bool = True
    switched: bool = False

    def request_head(self, head: RequestHead, *, complete: bool) -> None:
        self.keep_alive, self.switched = head.keep_alive, bool(head.upgrade)
        given = tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in head.fields)
        self.seen.append(("head", head.method, head.target, given))
        if complete:
            add_body(self.seen, head.take_body() or b"")
            self.request_end()

    def request_body(self, data: bytes) -> None:
        add_body(self.seen, data)

    def request_end(self) -> None:
        assert self.reader is not None
        self.seen.append(("end",))
        self.reader.busy = not self.keep_alive
        self.reader.pipelined = False  # a server would read no further


def add_body(seen: Seen, data: bytes) -> None:
    if seen[-1][0] == "body":
        data = seen.pop()[1] + data  # type: ignore[operator]
    if data:
        seen.append(("body", data))


def ours(chunks: list[bytes]) -> Seen:
    sink = Sink()
    sink.reader = RequestReader(sink)
    try:
        for chunk in chunks:
            sink.reader.feed(chunk)
            if sink.switched:  # what follows is of the other protocol
                break
    except MessageError:
        sink.seen.append(ERROR)
    return sink.seen


def theirs(chunks: list[bytes]) -> Seen:
    """What h11 makes of them. Blank lines before a request are skipped, as RFC 9112, 2.2 has it; h11 refuses them."""
    connection: h11.Connection | None = _server()
    seen: Seen = []
    try:
        for chunk in chunks:
            _receive(connection, chunk)
            connection = _read_on(connection, seen)
            if connection is None:
                break
    except h11.RemoteProtocolError:
        seen.append(ERROR)
    return seen


def _server() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)


def _receive(connection: h11.Connection, data: bytes) -> None:
    if connection.their_state is h11.IDLE and not connection.trailing_data[0]:
        data = data.lstrip(b"\r\n")
    if data:  # none would be the end of the connection
        connection.receive_data(data)


def _read_on(connection: h11.Connection, seen: Seen) -> h11.Connection | None:
    """Notes what h11 has read; returns what reads on, None where nothing does."""
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                return connection
            case h11.Request():
                seen.append(("head", bytes(event.method), *_target_and_fields(event)))
            case h11.Data():
                add_body(seen, bytes(event.data))
            case h11.EndOfMessage():
                seen.append(("end",))
                if _opens_websocket(seen):
                    return None
                if connection.our_state is h11.SEND_RESPONSE:
                    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                    connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return None
                rest, connection = connection.trailing_data[0], _server()
                _receive(connection, rest)
            case _:  # paused: an upgrade, or nothing more is read
                reads_on = connection.their_state is not h11.MUST_CLOSE and event is not h11.PAUSED
                return connection if reads_on else None


def _target_and_fields(event: h11.Request) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """As our reader has them: the authority of an absolute target comes first, as Host."""
    fields = tuple((bytes(name), bytes(value)) for name, value in event.headers)
    target = bytes(event.target)
    if (absolute := _ABSOLUTE.match(target)) is not None:
        target = absolute[2] if absolute[2][:1] == b"/" else b"/" + absolute[2]
        if absolute[1]:
            fields = ((b"host", absolute[1]), *(field for field in fields if field[0] != b"host"))
    return target, fields


def _opens_websocket(seen: Seen) -> bool:
    """Whether the newest request switches to the one protocol that ours switches to: what follows is not HTTP."""
    _, method, _, fields = next(one for one in reversed(seen) if one[0] == "head")
    names = (b"connection", b"upgrade", b"content-length", b"transfer-encoding")
    connection, upgrade, length, coding = (_words(fields, name) for name in names)  # type: ignore[arg-type]
    bodiless = not coding and not any(word.strip(b"0") for word in length)
    return method == b"GET" and bodiless and b"upgrade" in connection and b"websocket" in upgrade


def _words(fields: tuple[tuple[bytes, bytes], ...], name: bytes) -> set[bytes]:
    return {word.strip() for one, value in fields if one == name for word in value.lower().split(b",")}


def stream(dice: random.Random) -> list[bytes]:
    """One to three requests, some of them spoiled, cut into pieces anywhere."""
    data = b"".join(_request(dice) for _ in range(dice.randrange(1, 4)))
    if dice.random() < 0.2:
        at = dice.randrange(len(data))
        data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
    cuts = sorted(dice.sample(range(1, len(data)), min(len(data) - 1, dice.randrange(6))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _request(dice: random.Random) -> bytes:
    method = dice.choice(METHODS if dice.random() < 0.1 else METHODS[:7])
    target = dice.choice(TARGETS if dice.random() < 0.2 else TARGETS[:4])
    version = dice.choice([b"HTTP/1.1"] * 12 + [b"HTTP/1.0", b"HTTP/1.2", b"http/1.1", b"HTTP/0.9"])
    lines = [] if dice.random() < 0.1 else [b"Host: a"]
    lines += dice.choices(FIELDS if dice.random() < 0.2 else FIELDS[:USUAL_FIELDS], k=dice.randrange(4))
    lines += dice.choice(OFFERS) if dice.random() < 0.2 else []
    framing, body = _body(dice)
    lines += framing
    dice.shuffle(lines)
    end = b"\r\n" if dice.random() < 0.97 else b"\n"
    return b" ".join((method, target, version)) + end + b"".join(line + end for line in lines) + end + body


def _body(dice: random.Random) -> tuple[list[bytes], bytes]:
    """The fields that frame a body, and the body."""
    kind = dice.random()
    if kind < 0.35:
        size = dice.randrange(30)
        fields = [b"Content-Length: %d" % size]
        if dice.random() < 0.05:
            fields.append(b"Content-Length: %d" % (size + dice.randrange(2)))
        if dice.random() < 0.05:
            fields[-1] = b"Content-Length: " + dice.choice(LENGTHS)
        return fields, bytes(dice.choices(b"abc\r\n", k=size))
    if kind < 0.7:
        fields = [b"Transfer-Encoding: " + dice.choice(CODINGS)]
        if dice.random() < 0.05:
            fields.append(b"Content-Length: 3")
        chunks = [bytes(dice.choices(b"abc\r\n", k=dice.randrange(1, 20))) for _ in range(dice.randrange(3))]
        extension = dice.choice([b""] * 6 + [b";a=b", b" ", b';q="1"'])
        framed = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
        return fields, framed + b"0\r\n" + dice.choice([b""] * 5 + [b"T: v\r\n"]) + b"\r\n"
    return [], b""


def has_wide_line(chunks: list[bytes]) -> bool:
    """Whether a request line parts its words by several spaces, which RFC 9112, 3 allows and h11 refuses."""
    return _WIDE_LINE.search(b"".join(chunks)) is not None


def verdict(our: Seen, their: Seen) -> str:
    """`same`; `stricter`: we refuse what h11 takes, after the same beginning; `laxer`; `other`."""
    if our == their:
        return "same"
    if our and our[-1] == ERROR:
        same = our[:-1]
        begun = same[:-1] if same and same[-1][0] == "body" else same  # the rest of a body may follow
        if their[: len(begun)] == begun:
            return "stricter"
    return "laxer" if their and their[-1] == ERROR else "other"
