"""The parameters of a JSON body, by a decode that makes no objects of other fields; and the body with other values.

A body is refused where an engine may read another model than the gateway, or where an engine's parser may fail.
The decoder skips fields that it has no name for. It checks their syntax and their escapes, but neither their UTF-8
nor that their numbers are finite, so both are checked here.
"""

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

import msgspec

from gateway.bodies.engine_controls import CONTROLS, control_in
from gateway.bodies.parameters import ANY_SIZE, AnswerSize, BadRequestError, Parameters
from gateway.bodies.prompt_text import prompt_bytes

MOST_DEPTH: Final = 200  # engines' parsers fail at about a thousand levels, which would count as their fault
MOST_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # the first that is given counts
_MOST_CHOICES: Final = 128  # that are believed
_LONGEST_WORD: Final = 64  # bytes of a value that is a number or a word
LONGEST_CHANGED: Final = 4096  # bytes of a name or of options that the gateway replaces
_LONGEST_NUMBER: Final = 2**20
_MOST_GREAT_NUMBERS: Final = 1000  # of many digits or with an exponent of three: each is parsed
_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"
_BLOCK: Final = 256 * 1024  # bytes that are split at quotes at once: each piece is an object
_ESCAPES: Final = (b"\\\\", b'\\"')  # in this order
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS: Final = b"0" * 200  # with an exponent of two digits no infinite number has fewer
_BIG_EXPONENT: Final = re.compile(rb"[eE]\+?[0-9]{3}")
_OF_NUMBERS: Final = b"0123456789.eE+-"
_NUMBERS_END: Final = re.compile(rb"[0-9.eE+-]*")
_LONGEST_BEGIN: Final = 2 * len(_MANY_DIGITS) + 2  # a longer one has many digits in one piece
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_TOO_DEEP: Final = f"is nested more than {MOST_DEPTH} levels deep"

Raw = msgspec.Raw
_ABSENT: Final = Raw(b"null")
_CONTROLS: Final = tuple(CONTROLS)
_CONTROLS_OF: Final = attrgetter(*_CONTROLS)
_SIZES_OF: Final = attrgetter("n", *MOST_TOKENS)
_RAW: Final = ("stream", "stream_options", "prompt", "n", *MOST_TOKENS, *_CONTROLS)
_Fields: Final[Any] = msgspec.defstruct("_Fields", [("model", str, ""), *((name, Raw, _ABSENT) for name in _RAW)])
_DECODER: Final = msgspec.json.Decoder(_Fields)
_PAIRS: Final = msgspec.json.Decoder(dict[str, Raw])


class _Model:
    """A value of the key `model`."""


class _OnlyModel(msgspec.Struct):
    model: _Model | None = None


class _Counter:
    """Counts the top-level keys `model` of a body, however they are escaped: the decoder's hook gets each value."""

    def __init__(self) -> None:
        self._times = 0
        self._decoder = msgspec.json.Decoder(_OnlyModel, dec_hook=self._note)

    def times(self, body: bytes) -> int:
        """The number of keys, in a body whose values of `model` are all strings."""
        self._times = 0
        self._decoder.decode(body)
        return self._times

    def _note(self, _type: type, _value: object) -> _Model:
        self._times += 1
        return _Model()


_COUNTER: Final = _Counter()


def read_json(body: bytes) -> Parameters:
    if body.startswith(_BOM):
        raise BadRequestError("body: must not begin with a byte order mark; send plain UTF-8")
    try:
        fields = _DECODER.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:  # a kind of DecodeError
        raise _not_routable(body, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"body: not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadRequestError(f"body: not valid JSON: {_TOO_DEEP}") from error
    _check_structure(outside_strings(body))
    _check_controls(fields)
    if not fields.model:
        raise _no_model()
    if (times := _COUNTER.times(body)) != 1:
        raise BadRequestError(f"model: must be given once, got it {times} times", "model")
    stream, options = _value(fields.stream), _value(fields.stream_options, LONGEST_CHANGED, "")
    return Parameters(fields.model, stream, options, _answer_size(fields), _prompts(fields.prompt))


def _not_routable(body: bytes, error: Exception) -> BadRequestError:
    """The error for JSON with a value of another type than the gateway needs: the body's, or that of a `model`."""
    if body.lstrip(_BLANK)[:1] != b"{":
        try:
            msgspec.json.decode(body, type=Raw)
            body.decode()
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as malformed:
            return BadRequestError(f"body: not valid JSON: {malformed}")
        return BadRequestError("body: must be a JSON object")
    try:
        model = _PAIRS.decode(body).get("model", _ABSENT)
        body.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return BadRequestError(f"body: not valid JSON: {error}")
    if bytes(model)[:1] == b'"' and bytes(model) != b'""':  # others are not strings
        return BadRequestError("model: must be given once, got it 2 times", "model")
    return _no_model()


def _no_model() -> BadRequestError:
    return BadRequestError("model: is required; write the name of a deployment", "model")


def outside_strings(body: bytes) -> bytes:
    """The text of valid JSON without its strings."""
    if b"\\" in body:
        for escape in _ESCAPES:
            body = body.replace(escape, b"")
    kept, inside = [], False
    for start in range(0, len(body), _BLOCK):
        if inside and body.find(b'"', start, start + _BLOCK) < 0:
            continue  # such as an image: nothing copies it
        texts = body[start : start + _BLOCK].split(b'"')
        kept.append(b"".join(texts[inside::2]))
        inside ^= len(texts) % 2 == 0
    return kept[0] if len(kept) == 1 else b"".join(kept)


def _check_structure(text: bytes) -> None:
    """Refuses infinite numbers and deep nesting. `text`: the body without its strings."""
    for great, number in enumerate(_great_numbers(text), 1):
        if len(number) > _LONGEST_NUMBER or math.isinf(float(number)):
            raise BadRequestError("body: not valid JSON: a number is infinite, or too long")
        if great > _MOST_GREAT_NUMBERS:
            what = f"numbers with {len(_MANY_DIGITS)} digits or an exponent above 99"
            raise BadRequestError(f"body: has more than {_MOST_GREAT_NUMBERS} {what}; send fewer")
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:  # no deeper than brackets open
        steps = array("b", text.translate(_STEPS, _NO_BRACKETS))
        if max(accumulate(steps)) > MOST_DEPTH:
            raise BadRequestError(f"body: {_TOO_DEEP}")


def _great_numbers(text: bytes) -> Iterator[bytes]:
    """The numbers that may be infinite, without their signs. To parse all numbers would hold the loop for long."""
    if b"e" in text.lower():
        for exponent in _BIG_EXPONENT.finditer(text):
            yield _number_around(text, exponent.start())[0]
    if len(text) < len(_MANY_DIGITS):  # as the text of most bodies
        return
    digits = text.translate(_DIGITS)
    at = digits.find(_MANY_DIGITS)
    while at >= 0:
        number, end = _number_around(text, at)
        yield number
        at = digits.find(_MANY_DIGITS, end)


def _number_around(text: bytes, at: int) -> tuple[bytes, int]:
    """A number that has this place, and where it ends."""
    before = text[max(0, at - _LONGEST_BEGIN) : at]
    begin = at - len(before) + len(before.rstrip(_OF_NUMBERS))
    match = _NUMBERS_END.match(text, at)
    end = at if match is None else match.end()
    return text[begin:end].lstrip(b"-"), end


def _check_controls(fields: Any) -> None:
    given = _CONTROLS_OF(fields)
    if given.count(_ABSENT) == len(given):
        return
    values = zip(_CONTROLS, given, strict=True)
    control = control_in({name: _value(value, otherwise=...) for name, value in values if value is not _ABSENT})
    if control is not None:
        name, advice = control
        raise BadRequestError(f"{name}: is not passed on to engines; {advice}", name)


def _value(raw: Raw, longest: int = _LONGEST_WORD, otherwise: Any = None) -> Any:
    """A short value. `otherwise`: the result for a long value."""
    if raw is _ABSENT:
        return None
    return msgspec.json.decode(raw) if len(memoryview(raw)) <= longest else otherwise


def _answer_size(fields: Any) -> AnswerSize:
    """Values that engines refuse count as not given."""
    given = _SIZES_OF(fields)
    if given.count(_ABSENT) == len(given):
        return ANY_SIZE
    choices, *values = map(_value, given)
    stated = [value for value in values if type(value) is int and value > 0]
    number = min(choices, _MOST_CHOICES) if type(choices) is int and choices > 0 else 1
    return AnswerSize(number, stated[0], max(stated)) if stated else AnswerSize(number)


def _prompts(raw: Raw) -> int:
    """The number of prompts in the value of `prompt`: texts, or lists of numbers. One list of numbers is one prompt."""
    if raw is _ABSENT:
        return 1
    begin = bytes(memoryview(raw)[:_LONGEST_WORD]).translate(None, _BLANK)
    if begin[:2] == b'["':
        return outside_strings(bytes(raw)).count(b",") + 1
    return max(1, bytes(raw).count(b"[") - 1) if begin[:2] == b"[[" else 1


def _with_values(body: bytes, values: Mapping[str, Any]) -> bytes:
    """A valid body with other values. Its pairs are written again, so that of two equal keys the last value remains."""
    pairs = _PAIRS.decode(body)
    pairs.update((name, Raw(msgspec.json.encode(value))) for name, value in values.items())
    return msgspec.json.encode(pairs)


def split_values(body: bytes, names: tuple[str, ...]) -> tuple[bytes, dict[str, bytes]]:
    """A valid body without some values, up to where pairs may follow, and these values. Long values stay in it."""
    pairs = _PAIRS.decode(body)
    short = [name for name in names if name in pairs and len(memoryview(pairs[name])) <= LONGEST_CHANGED]
    taken = {name: bytes(pairs.pop(name)) for name in short}
    return msgspec.json.encode(pairs)[:-1] + (b"," if pairs and taken else b""), taken


@dataclass(slots=True)
class JsonBody:
    """A body that was read.

    Attributes:
        content: the body as it came; without `values`, if these were taken out, up to where pairs may follow.
        more: the bytes behind `content`, in parts.
        digest: SHA-256 of the body as it came; empty: not known yet.
        text_bytes: None until counted.
        values: JSON of the values that were taken out.
    """

    parameters: Parameters
    content: bytes
    digest: bytes = b""
    text_bytes: int | None = None
    values: dict[str, bytes] | None = None
    more: tuple[bytes, ...] = ()

    def with_values(self, changed: dict[str, Any]) -> tuple[bytes, ...]:
        if self.values is not None:
            tail = {name: msgspec.Raw(value) for name, value in self.values.items()}
            tail.update((name, msgspec.Raw(msgspec.json.encode(value))) for name, value in changed.items())
            return self.content, *self.more, msgspec.json.encode(tail)[1:]
        return (_with_values(self.content, changed) if changed else self.content,)

    def identity(self) -> bytes:
        if not self.digest:
            self.digest = sha256(self.content).digest()
        return self.digest

    def count_text(self) -> int:
        if self.text_bytes is None:
            self.text_bytes = prompt_bytes(self.content)
        return self.text_bytes
