"""Server-sent events on their way to the client: only complete events pass, so that an error event can follow."""

import re
from typing import Final

MAX_HELD_BYTES: Final = 256 * 2**10
# Strings of JSON have their quotes escaped, so that no text of a model equals this.
_NUMBER: Final = re.compile(rb'"sequence_number"[ \t]*:[ \t]*([0-9]{1,18})')
_LF, _CRLF, _CR = b"\n\n", b"\n\r\n", b"\r\r"  # how events end
_BEFORE: Final = len(_CRLF) - 1  # bytes of an end that may have come before its last one


class PartialEvent:
    """Holds an incomplete event, whose bound the caller sets. However small the parts, each byte is searched once."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: bytes | bytearray = b""  # empty between events, as most streams are when they rest

    def add(self, piece: bytes) -> bytes:
        """The events that are complete with this piece; may be empty."""
        held = self.held
        if not isinstance(held, bytearray):
            end = _last_end(piece, 0)
            if end < len(piece):
                self.held = bytearray(piece[end:])
            return piece[:end]
        begin = max(0, len(held) - _BEFORE)
        held += piece
        end = _last_end(held, begin)
        complete = bytes(held[:end])
        if end < len(held):
            del held[:end]
        else:
            self.held = b""
        return complete

    def take(self) -> bytes:
        taken, self.held = bytes(self.held), b""
        return taken


def _last_end(data: bytes | bytearray, begin: int) -> int:
    """Where the last event ends behind `begin`; 0 without an end."""
    crlf = data.rfind(_CRLF, begin)
    at = max(crlf, data.rfind(_LF, begin), data.rfind(_CR, begin))
    return 0 if at < 0 else at + len(_CRLF if at == crlf else _LF)


class CompleteEvents:
    """Holds the incomplete event back until its end arrives. One larger than `MAX_HELD_BYTES` passes in pieces."""

    __slots__ = ("_between", "_last", "_partial")

    def __init__(self) -> None:
        self._partial = PartialEvent()
        self._between = True  # whether all that passed so far ended with an event's end
        self._last = b""  # the events that passed last

    @property
    def between(self) -> bool:
        """Whether the client has complete events alone, so that a comment or an error may follow."""
        return self._between

    def pass_on(self, chunk: bytes) -> bytes:
        """What can go to the client now, with this chunk; may be empty."""
        partial = self._partial
        if not partial.held and chunk[-2:] == b"\n\n":  # several times as fast as `endswith`
            self._between = True
            self._last = chunk
            return chunk
        complete = partial.add(chunk)
        if complete:
            self._last = complete
        if len(partial.held) > MAX_HELD_BYTES:
            self._between = False
            return complete + partial.take()
        self._between = self._between or bool(complete)
        return complete

    def rest(self) -> bytes:
        """The held part of an event, for a stream that ended as it should."""
        return self._partial.take()

    def last(self, event: bytes) -> bytes:
        """An event that ends a stream that broke off; the one that was held back is dropped."""
        return event if self._between else b"\n\n" + event

    def next_number(self) -> int:
        """The number of the next event in a stream whose events state theirs (`sequence_number`), from 0."""
        numbers = _NUMBER.findall(self._last)
        return int(numbers[-1]) + 1 if numbers else 0


def is_event_stream(content_type: bytes) -> bool:
    """Whether an answer of this type is a stream of events."""
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"


def is_plain(content_encoding: bytes) -> bool:
    """Whether an answer of this encoding can be read."""
    return content_encoding.lower() in (b"", b"identity")
