"""Token counts of one answer, read from its bytes as they pass. Pure.

No event is parsed but some that hold `"usage"`, so that a stream costs a few searches per piece and nothing per event.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.bodies.parameters import AnswerSize
from gateway.requests.event_stream import PartialEvent

_MARK: Final = b'"usage"'
_ERROR_MARKS: Final = (b'data: {"error"', b"event: error")
_CHOICES: Final = b'"choices"'
_DONE: Final = b"[DONE]"
_ERROR: Final = b"error"
_MOST_HELD: Final = 2**20  # of an event, or of the end of an answer, in which counts are searched
_MOST_USAGE: Final = 4096  # of counts in a part of an answer, and of its start that is kept
_MOST_UNPACKED: Final = 64 * 2**20
_MOST_OF_PIECE: Final = 2 * 2**20  # unpacked of one part, during which no other request is served
_MOST_MARKED: Final = 8  # events of a piece that are parsed: later counts replace earlier ones
_MOST_PARSED: Final = 2**20  # of unpacked events: within some hundredths of a second whatever is in them
_PARSED_PER_BYTE: Final = 16  # and beyond that for each packed byte
_MOST_AT_ONCE: Final = 2**18
_BYTES_PER_TOKEN: Final = 4
_TOKENS_PER_S: Final = 30  # of each choice of an answer that is not observed while it is made
_PROMPT: Final = ("prompt_tokens", "input_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens")
_TOTAL: Final = ("total_tokens",)
_MESSAGES_CACHED: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
_MOST_TOKENS: Final = 2**53
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")


class Tokens(NamedTuple):
    """Tokens of one request. `cached`: the part of the prompt's that the engine had."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    estimated: bool = False


def estimated_prompt(request_bytes: int) -> Tokens:
    """The usage of a request of which only the size is known."""
    return Tokens(max(1, request_bytes // _BYTES_PER_TOKEN), estimated=True)


def estimated_completion(engine_s: float, size: AnswerSize) -> int:
    """Tokens that an engine has made after this many seconds, of an answer that was not observed."""
    made = int(max(0.0, engine_s) * _TOKENS_PER_S)
    return size.choices * (made if size.most is None else min(made, size.most))


class AnswerUsage:
    """Reads one answer.

    Args:
        request_bytes: the prompt's size, from which its tokens are estimated where the engine reports none.
        events: the answer is a stream of server-sent events.
        has_completion: this endpoint makes tokens, so that its answer is counted.
        length: bytes of the answer's body, as announced. The engine has made all of them, even if the client reads few.
    """

    __slots__ = (
        *("_blind", "_completions", "_end", "_events", "_has_completion", "_last", "_length", "_parsable"),
        *("_partial",),
        *("_plain", "_request_bytes", "_size", "_start", "_reported", "_unpack", "_unpacked", "failed"),
    )

    def __init__(
        self,
        request_bytes: int,
        events: bool,
        encoding: str = "",
        has_completion: bool = True,
        length: int | None = None,
    ) -> None:
        self._request_bytes = request_bytes
        self._length = length or 0
        self._events = events
        self._has_completion = has_completion
        self._partial = PartialEvent() if events else None
        self._end = bytearray()  # the end of an answer without events
        self._start = b""  # the start of such an answer, where some servers write the counts
        self._last = b""  # the events that came last
        self._completions = 0  # events with a piece of an answer
        self._size = 0
        self._reported: dict[str, int] = {}
        self.failed = False  # an error event passed
        packed = encoding and encoding.strip().lower()
        self._unpack = zlib.decompressobj(wbits=47) if packed in ("gzip", "x-gzip", "deflate") else None
        self._unpacked = 0
        self._parsable = _MOST_PARSED  # bytes of unpacked events that may still be parsed
        self._blind = self._unpack is None and packed not in ("", "identity")
        self._plain = events and self._unpack is None and not self._blind  # events that can be read as they come

    def feed(self, piece: bytes) -> bool:
        """Reads a piece of the answer's body, as it came; returns whether it may hold a part of token counts."""
        partial = self._partial
        if self._plain and partial is not None and not partial.held and piece[-2:] == b"\n\n":  # complete events
            return self._take(piece)
        if self._blind:
            self._size += len(piece)
        elif self._unpack is None:
            self._feed_plain(piece)
        else:
            self._feed_packed(piece, self._unpack)
        return True

    def _feed_packed(self, piece: bytes, unpack: "zlib._Decompress") -> None:
        most = min(_MOST_UNPACKED, self._unpacked + _MOST_OF_PIECE)
        self._parsable += _PARSED_PER_BYTE * len(piece)
        try:
            while piece and not (unpack.eof or self._blind):  # what comes behind the end it would keep, all of it
                plain = unpack.decompress(piece, _MOST_AT_ONCE)
                piece = unpack.unconsumed_tail
                self._unpacked += len(plain)
                if self._unpacked > most:
                    self._blind = True
                    return
                self._feed_plain(plain)
        except zlib.error:
            self._blind = True

    def tokens(self) -> Tokens:
        if not self._events and not self._blind:
            self._read_complete()
        prompt, completion = self._reported.get("prompt"), self._reported.get("completion")
        if prompt is not None and (completion is not None or not self._has_completion):
            return Tokens(prompt, self._reported.get("cached", 0), completion or 0)
        counted = self._events and not self._blind
        made = self._pieces_of_an_answer() if counted else max(self._size, self._length) // _BYTES_PER_TOKEN
        made = made if self._has_completion else 0
        total = self._reported.get("total")
        if total is not None and completion is None:  # servers of embeddings and ranks report it alone
            made = min(made, total) if prompt is None else max(total - prompt, 0)
            return Tokens(total - made if prompt is None else prompt, self._reported.get("cached", 0), made)
        return Tokens(
            estimated_prompt(self._request_bytes).prompt if prompt is None else prompt,
            self._reported.get("cached", 0),
            made if not completion else max(made, completion),
            estimated=True,
        )

    def _feed_plain(self, data: bytes) -> None:
        self._size += len(data)
        partial = self._partial
        if partial is None:
            if len(self._start) < _MOST_USAGE:
                self._start += data[: _MOST_USAGE - len(self._start)]
            self._end += data[-_MOST_HELD:]
            if len(self._end) > 2 * _MOST_HELD:  # not with each piece: what stays is copied
                del self._end[:-_MOST_HELD]
            return
        complete = partial.add(data)
        if len(partial.held) > _MOST_HELD:
            partial.take()
        if complete:
            self._take(complete)

    def _take(self, complete: bytes) -> bool:
        """Reads complete events; returns whether one may hold token counts."""
        # `find` and not `in`, which makes and drops an error before it searches bytes: it costs four times as much.
        self._last = complete
        if complete[:6] == b"event:" or complete.find(b"\nevent:") >= 0:
            self._completions += complete.count(b'content_block_delta"') + complete.count(b'.delta"')
        else:
            self._completions += complete.count(_CHOICES)
        marked = complete.find(_MARK)
        if marked >= 0:
            self._read_marked(complete, marked)
        if complete.find(_ERROR) >= 0 and any(mark in complete for mark in _ERROR_MARKS):
            self.failed = True
        return marked >= 0

    def _read_marked(self, complete: bytes, first: int) -> None:
        """Parses what may hold counts: the first line, which may begin a stream of messages, and the last ones."""
        for line in _marked_lines(complete, first):
            if line.startswith(b"data:"):
                if self._unpack is not None:
                    self._parsable -= len(line)
                    if self._parsable < 0:
                        self._blind = True
                        return
                self._read(line[5:])

    def _pieces_of_an_answer(self) -> int:
        """Events with a token. The event with the reason to end has none, and precedes the stream's own end."""
        ended = _DONE in self._last and self._completions > 0
        return self._completions - int(ended)

    def _read_complete(self) -> None:
        end = bytes(self._end[-_MOST_HELD:])
        for text, at in ((end, end.rfind(_MARK)), (self._start, self._start.find(_MARK))):
            if at >= 0 and not self._reported:
                self._read(text)
                if not self._reported:
                    self._read_part(text[text.find(b"{", at) :][:_MOST_USAGE])

    def _read_part(self, text: bytes) -> None:
        """The `usage` of an answer of which a part was kept. `text` begins with it and may continue."""
        try:
            usage, _ = json.JSONDecoder().raw_decode(text.decode(errors="replace"))
        except (ValueError, RecursionError):
            return
        self._note(usage)

    def _read(self, text: bytes) -> None:
        try:
            content = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        if not isinstance(content, dict):
            return
        message, answer, usage = content.get("message"), content.get("response"), content.get("usage")
        if isinstance(message, dict):  # a stream of messages begins with it, before the answer's tokens are known
            self._note(message.get("usage"), started=True)
        if isinstance(answer, dict):
            self._note(answer.get("usage"))
        if usage is not None:
            self._note(usage)

    def _note(self, usage: Any, *, started: bool = False) -> None:
        """Later counts replace earlier ones: they are totals."""
        if not isinstance(usage, dict):
            return
        prompt = _first(usage, _PROMPT)
        cached = _first(usage, _MESSAGES_CACHED[:1]) if _MESSAGES_CACHED[0] in usage else None
        if cached is not None and prompt is not None:  # there the prompt's tokens do not include cached ones
            prompt += sum(_first(usage, (name,)) or 0 for name in _MESSAGES_CACHED)
        for details in _DETAILS:
            inner = usage.get(details)
            if isinstance(inner, dict) and cached is None:
                cached = _first(inner, ("cached_tokens",))
        completion, total = (None, None) if started else (_first(usage, _COMPLETION), _first(usage, _TOTAL))
        if prompt is not None:
            self._reported["prompt"] = prompt
        if cached is not None:
            self._reported["cached"] = cached
        if completion is not None:
            self._reported["completion"] = completion
        if total is not None:
            self._reported["total"] = total


def _marked_lines(complete: bytes, first: int) -> list[bytes]:
    """The first line with the mark and the last ones, in order. `first`: the position of the first mark."""
    begin, behind = _line_around(complete, first)
    lines = [complete[begin:behind]]
    end = len(complete)
    while len(lines) < _MOST_MARKED and (at := complete.rfind(_MARK, behind, end)) >= 0:
        end, line_end = _line_around(complete, at)
        lines.insert(1, complete[end:line_end])
    return lines


def _line_around(complete: bytes, at: int) -> tuple[int, int]:
    begin = max(complete.rfind(b"\n", 0, at), complete.rfind(b"\r", 0, at)) + 1
    ends = [end for mark in (b"\n", b"\r") if (end := complete.find(mark, at)) >= 0]
    return begin, min(ends, default=len(complete))


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = values.get(name)
        if type(value) is int and 0 <= value <= _MOST_TOKENS:  # and no boolean
            return value
    return None
