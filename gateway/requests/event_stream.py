"""Server-sent events on their way to the client: whole events only, so that an error event can follow at any time."""

import re
from typing import Final

from gateway.requests.sse_event import BegunEvent

MAX_HELD_BYTES: Final = 256 * 2**10
# Strings of JSON have their quotes escaped, so that no text of a model looks like this.
_NUMBER: Final = re.compile(rb'"sequence_number"[ \t]*:[ \t]*([0-9]{1,18})')


class WholeEvents:
    """Holds the begun event back until its end arrives. One larger than `MAX_HELD_BYTES` passes in pieces."""

    def __init__(self) -> None:
        self._begun = BegunEvent()
        self._between = True  # whether all that passed so far ended with an event's end
        self._last = b""  # the events that passed last

    @property
    def between(self) -> bool:
        """Whether the client has whole events alone, so that a comment or an error may follow."""
        return self._between

    def pass_on(self, chunk: bytes) -> bytes:
        """What can go to the client now, with this chunk; may be empty."""
        begun = self._begun
        if not begun.held and chunk[-2:] == b"\n\n":  # several times as fast as `endswith`
            self._between = True
            self._last = chunk
            return chunk
        whole = begun.add(chunk)
        if whole:
            self._last = whole
        if len(begun.held) > MAX_HELD_BYTES:
            self._between = False
            return whole + begun.take()
        self._between = self._between or bool(whole)
        return whole

    def rest(self) -> bytes:
        """What is held back, for a stream that ended as it should."""
        return self._begun.take()

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
    """Whether an answer of this encoding can be read as it is: an encoded one is not looked into."""
    return content_encoding.lower() in (b"", b"identity")
