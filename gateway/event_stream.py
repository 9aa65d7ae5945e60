"""Server-sent events on their way to the client: whole events only, so that an error event can follow at any time."""

from typing import Any, Final

import orjson

from gateway.begun_event import BegunEvent
from gateway.errors import MESSAGES_PATH

MAX_HELD_BYTES: Final = 256 * 2**10


class WholeEvents:
    """Holds the begun event back until its end arrives. One larger than `MAX_HELD_BYTES` passes in pieces."""

    def __init__(self) -> None:
        self._begun = BegunEvent()
        self._between = True  # whether all that passed so far ended with an event's end

    def pass_on(self, chunk: bytes) -> bytes:
        """What can go to the client now, with this chunk; may be empty."""
        begun = self._begun
        if not begun.held and chunk[-2:] == b"\n\n":  # several times as fast as `endswith`
            self._between = True
            return chunk
        whole = begun.add(chunk)
        if len(begun.held) > MAX_HELD_BYTES:
            self._between = False
            return whole + begun.take()
        self._between = self._between or bool(whole)
        return whole

    def rest(self) -> bytes:
        """What is held back, for a stream that ended as it should."""
        return self._begun.take()

    def error(self, path: bytes, code: str, message: str) -> bytes:
        """The error event. It ends a stream that broke off; the event that was held back is dropped."""
        return (b"" if self._between else b"\n\n") + error_event(path, code, message)


def error_event(path: bytes, code: str, message: str) -> bytes:
    """The event by which this API's clients see an error in a stream that has begun."""
    if path.startswith(MESSAGES_PATH):
        body = {"type": "error", "error": {"type": "api_error", "message": message, "code": code}}
        return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"
    error: dict[str, Any] = {"message": message, "type": "server_error", "code": code, "param": None, "details": {}}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


def is_event_stream(content_type: bytes) -> bool:
    """Whether an answer of this type is a stream of events."""
    return content_type.partition(b";")[0].strip().lower() == b"text/event-stream"


def is_plain(content_encoding: bytes) -> bool:
    """Whether an answer of this encoding can be read as it is: an encoded one is not looked into."""
    return content_encoding.lower() in (b"", b"identity")
