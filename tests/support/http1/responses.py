"""What h11 and our reader make of one response in a byte stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h11

from http1.protocol.framing import MessageError
from http1.protocol.heads import ResponseHead
from http1.protocol.reader import ResponseReader
from support.fuzz.refusals import explained


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request matters to how its response is read."""

    head_only: bool = False
    upgrade: bool = False
    continues: bool = False


@dataclass
class Answer:
    """One response as far as it was read. It is its own sink.

    Attributes:
        how: `open`, `complete` or `refused`.
        rest: what followed it in the same bytes; of ours after a switch of protocols alone.
        clean: whether nothing did.
    """

    status: int = 0
    fields: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    how: str = "open"
    rest: bytes = field(default=b"", compare=False)
    keep_alive: bool = field(default=False, compare=False)
    clean: bool = field(default=False, compare=False)

    def response_head(self, head: ResponseHead) -> None:
        assert not self.status, "one head for each response"
        self.status, self.fields, self.keep_alive = head.status, tuple(head.fields), head.keep_alive
        assert head.named == dict(reversed(head.fields))

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        assert self.status
        assert data
        assert self.how == "open"
        assert not chunks or len(chunks) > len(data)
        self.body += data

    def response_end(self, *, clean: bool) -> None:
        assert self.status
        assert self.how == "open", "one end for each response"
        self.clean, self.how = clean, "whole"


def ours(chunks: list[bytes], asked: Asked, *, closed: bool = False) -> Answer:
    """What our reader makes of them, up to the end of the response; `closed`: then the peer closes."""
    answer = Answer()
    reader = ResponseReader(answer)
    continued: Callable[[], None] | None = (lambda: None) if asked.continues else None
    reader.expect(asked.head_only, asked.upgrade, continued)
    try:
        for chunk in chunks:
            answer.rest += reader.feed(chunk)
            if answer.how == "whole":
                return answer
        if closed:
            assert reader.end_of_stream() == (answer.how == "whole")
    except MessageError as error:
        explained(error)
        answer.how = "refused"
    return answer


def theirs(chunks: list[bytes], asked: Asked, *, closed: bool = False) -> Answer:
    """The same of h11."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
    fields = [("host", "a")] + ([("upgrade", "websocket"), ("connection", "upgrade")] if asked.upgrade else [])
    connection.send(h11.Request(method="HEAD" if asked.head_only else "GET", target="/", headers=fields))
    connection.send(h11.EndOfMessage())
    answer = Answer()
    try:
        for chunk in chunks if not closed else [*chunks, b""]:
            connection.receive_data(chunk)
            while answer.how == "open":
                event = connection.next_event()
                if event is h11.NEED_DATA or not _note(event, answer):
                    break
    except h11.RemoteProtocolError:
        answer.how = "refused"
    answer.rest = connection.trailing_data[0]
    return answer


def _note(event: Any, answer: Answer) -> bool:
    """Notes an event; returns whether another may follow."""
    match event:
        case h11.InformationalResponse(status_code=101) | h11.Response():
            fields = tuple((bytes(name), bytes(value)) for name, value in event.headers)
            answer.status, answer.fields = event.status_code, fields
            if event.status_code == 101:
                answer.how = "whole"
        case h11.Data():
            answer.body += bytes(event.data)
        case h11.EndOfMessage():
            answer.how = "whole"
        case h11.InformationalResponse():
            pass
        case _:  # paused or closed
            return False
    return True
