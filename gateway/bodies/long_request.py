"""What the gateway reads of a long request: as of a short one, but in steps between which the loop serves others."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

import orjson

from gateway.bodies.engine_controls import CONTROLS
from gateway.bodies.json_cuts import MOST_DEPTH
from gateway.bodies.long_body import LongBody, NotJsonError, Part
from gateway.bodies.request_body import (
    CHOICES,
    MOST_TOKENS,
    PROMPT,
    STREAMING,
    TOO_DEEP,
    Asked,
    BadRequestError,
    answer_size,
    check_controls,
    check_mark,
    check_model,
    check_once,
    model_spans,
    prompts_in,
)
from gateway.usage.stream_usage import lacks_usage, options_span

LONG_BYTES: Final = 512 * 1024
_SHORT_BYTES: Final = 128 * 1024  # parsed within about ten milliseconds; thousands of keys `model` take forty
_MOST_VALUES: Final = 32 * 1024  # as many of the shortest ones have as many bytes
_BEGINS_OF_VALUES: Final = (b",", b"[", b"{")
_OPTIONS: Final = "stream_options"
_SIZES: Final = (*MOST_TOKENS, CHOICES)
_MOST_TIMES: Final = 64  # that a repeated `model` is looked for: it is refused anyway


def is_long(pieces: Sequence[bytes], size: int) -> bool:
    """Whether a body is read in steps: a long one, and a shorter one of many values, which cost more than their bytes.

    Others are read at once: steps cost an image twenty times, and a prompt three times as much.
    """
    if size <= _SHORT_BYTES or size > LONG_BYTES:
        return size > LONG_BYTES
    # What is not there is found missing much faster than it is counted.
    values = sum(piece.count(mark) for piece in pieces for mark in _BEGINS_OF_VALUES if piece.find(mark) >= 0)
    return values > _MOST_VALUES


class LongRequests:
    """Reads the long bodies of one process in turns: one step of one of them in each turn of the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, pieces: Sequence[bytes]) -> Asked:
        """The model that a body asks for.

        Raises:
            BadRequestError: as `read_asked`.
        """
        steps = steps_to_asked(pieces)
        while True:
            async with self._turn:
                try:
                    next(steps)
                except StopIteration as done:
                    asked: Asked = done.value
                    return asked
                await asyncio.sleep(0)


def steps_to_asked(pieces: Sequence[bytes]) -> Generator[None, None, Asked]:
    """Steps of about a millisecond, and what `read_asked` returns or raises."""
    check_mark(b"".join(pieces[:3]) if pieces and len(pieces[0]) < 3 else pieces[0] if pieces else b"")  # noqa: PLR2004
    top, body = _TopLevel(), LongBody(pieces, (_OPTIONS,))
    try:
        for part in body.parts():
            if body.deepest > MOST_DEPTH:
                raise BadRequestError(TOO_DEEP)
            if part is not None:
                top.note(part)
            yield
    except NotJsonError as error:
        raise BadRequestError(f"body: not valid JSON: {error}") from error
    return top.asked(pieces)


class _TopLevel:
    """What the top level of a body says, gathered from its parts. Of keys that come twice the last one counts."""

    def __init__(self) -> None:
        self._is_object = True
        self._model: Any = None
        self._times = 0  # that `model` was given
        self._span: tuple[int, int] = (0, 0)  # where its first value stands
        self._shortened = False  # some of the model was left out
        self._streaming: dict[str, Any] = {}
        self._controls: dict[str, Any] = {}  # fields that are for engines' operators
        self._sizes: dict[str, Any] = {}  # what it says of the length of its answer
        self._options: Part | None = None  # the part that has them, where they were given once and are whole
        self._cut = False  # the options go on
        self._prompts = 0  # in a list of them, some of which may be counted twice
        self._lists_prompts = False  # the list may go on

    def note(self, part: Part) -> None:
        content = part.content
        if not isinstance(content, dict):
            self._is_object = False
            return
        if self._cut and isinstance(part.under, dict):
            self._streaming[_OPTIONS].update(part.under)
        self._note_prompts(content, part.under)
        if "model" in content:
            self._model = content["model"]
            if self._times <= _MOST_TIMES:
                self._note_model(part, model_spans(part.text))
        self._controls |= {name: content[name] for name in CONTROLS & content.keys()}
        self._sizes |= {name: content[name] for name in _SIZES if name in content}
        said = {name: content[name] for name in STREAMING if name in content}
        if _OPTIONS in said:
            whole = said[_OPTIONS] is None or (isinstance(said[_OPTIONS], dict) and not part.cut)
            is_first = _OPTIONS not in self._streaming
            self._options = part._replace(content=None, under=None) if whole and is_first else None
        self._streaming |= said
        self._cut = part.cut

    def _note_prompts(self, content: dict[str, Any], under: Any) -> None:
        if self._lists_prompts:
            self._prompts += prompts_in(under)
        if content:
            self._prompts += prompts_in(content.get(PROMPT))
            self._lists_prompts = next(reversed(content)) == PROMPT

    def _note_model(self, part: Part, spans: Sequence[tuple[int, int]]) -> None:
        if spans and not self._times:
            self._span, self._shortened = _placed(part, spans[0]), _is_shortened(part, spans[0])
        self._times += len(spans)

    def asked(self, pieces: Sequence[bytes]) -> Asked:
        """All that it says together."""
        if not self._is_object:
            raise BadRequestError("body: must be a JSON object")
        check_controls(self._controls)
        model = check_model(self._model)
        check_once(self._times)
        span, options = self._span, self._options_span()
        body, numbers = _carved(pieces, (span,) if options is None else (span, options))
        if self._shortened:
            model = orjson.loads(body[numbers[0]])
        options_piece = numbers[1] if options is not None else None
        sizes = answer_size(self._sizes)
        place, prompts = (0, span[1] - span[0]), max(1, self._prompts)
        return Asked(model, body, place, self._streaming, numbers[0], True, options_piece, sizes, prompts)

    def _options_span(self) -> tuple[int, int] | None:
        """Where the options stand, if they are to be written anew; None: they are not, or that is in doubt."""
        if self._options is None or not lacks_usage(self._streaming):
            return None
        span = options_span(self._options.text)
        # Of shortened options nothing is written anew.
        return None if span is None or _is_shortened(self._options, span) else _placed(self._options, span)


def _is_shortened(part: Part, span: tuple[int, int]) -> bool:
    """Whether some of a value was left out of the part."""
    start, end = _placed(part, span)
    return end - start != span[1] - span[0]


def _placed(part: Part, span: tuple[int, int]) -> tuple[int, int]:
    start, end = span
    return part.place(start), part.place(end - 1) + 1


def _carved(pieces: Iterable[bytes], spans: Sequence[tuple[int, int]]) -> tuple[tuple[bytes, ...], list[int]]:
    """The same bytes, with a piece of its own for each span; the numbers of these pieces, in the order of `spans`."""
    numbers = [0] * len(spans)
    carved: list[bytes] = []
    left = sorted((span, number) for number, span in enumerate(spans))
    value: list[bytes] = []  # of the first span that is left
    at = 0
    for piece in pieces:
        start = 0
        while left and left[0][0][0] < at + len(piece):
            (begin, end), number = left[0]
            if begin > at + start:
                carved.append(piece[start : begin - at])
                start = begin - at
            value.append(piece[start : end - at])
            start += len(value[-1])
            if at + start < end:
                break
            numbers[number] = len(carved)
            carved.append(b"".join(value))
            value.clear()
            left.pop(0)
        if start < len(piece):
            carved.append(piece[start:] if start else piece)
        at += len(piece)
    return tuple(carved), numbers
