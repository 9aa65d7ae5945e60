"""What the gateway reads of a request: the encoding, and some of the top level, `model` above all.

All other bytes pass as they came. A body is refused where an engine would read it otherwise, or fail at it.
"""

import re
from collections.abc import Mapping
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from gateway.bodies.engine_controls import CONTROLS, control_in
from gateway.bodies.json_cuts import MOST_DEPTH, depth_of
from gateway.bodies.plain_runs import LEFT_OUT, condensed

_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)
_BOM: Final = b"\xef\xbb\xbf"
# The key, each letter plain or as an escape. It may also match inside a longer key; the search below tells them apart.
_KEY: Final = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"(?=[ \t\r\n]*:)'
)
_VALUE: Final = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_PLACE: Final = f"model-{token_hex(16)}"  # no client can know it
_PLACED: Final = orjson.dumps(_PLACE)
_ENDS: Final = 4096
STREAMING: Final = ("stream", "stream_options")
MOST_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")  # the first that is given
CHOICES: Final = "n"
PROMPT: Final = "prompt"
_MOST_CHOICES: Final = 128  # that are believed
NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})
_MOST_PIECES: Final = 64  # that a body stays in
TOO_DEEP: Final = f"body: is nested more than {MOST_DEPTH} levels deep"
_MOST_KEYS: Final = 10_000  # named `model` at any depth


class BadRequestError(ValueError):
    """The request cannot be routed. `param`: the field at fault; empty: the body as a whole."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class AnswerSize(NamedTuple):
    """How much of an answer a request asks for.

    Attributes:
        choices: how many.
        most: tokens of each choice; None: it does not say.
        limit: the same, by the largest number that any field states: engines read different ones.
    """

    choices: int = 1
    most: int | None = None
    limit: int | None = None


ANY_SIZE: Final = AnswerSize()


class Asked(NamedTuple):
    """A request body with the model that it asks for.

    Attributes:
        model: the value of the top-level `model`.
        body: as it came, in pieces.
        span: where that value stands in its piece, the quotes included.
        options: of streaming.
        piece: the number of the piece with that value.
        long: the body was read in steps; none is to be read again.
        options_piece: of a long body, the piece that is the value of `stream_options` alone; None: it has none.
        answer: how much of an answer it asks for.
        prompts: how many it has, each with answers of its own. Of a long body, some may be counted twice.
    """

    model: str
    body: tuple[bytes, ...]
    span: tuple[int, int]
    options: Mapping[str, Any] = NO_OPTIONS
    piece: int = 0
    long: bool = False
    options_piece: int | None = None
    answer: AnswerSize = ANY_SIZE
    prompts: int = 1

    @property
    def stream(self) -> bool:
        """Whether it asks for events as they come."""
        return self.options.get("stream") is True

    def with_model(self, model: str | None) -> tuple[bytes, ...]:
        """The body with another model, and no other byte changed; None: as it came."""
        if model is None or model == self.model:
            return self.body
        (start, end), piece = self.span, self.body[self.piece]
        changed = piece[:start] + orjson.dumps(model) + piece[end:]
        return (*self.body[: self.piece], changed, *self.body[self.piece + 1 :])


def check_charset(content_type: str) -> None:
    """Checks that each charset that is stated for the body is one that can be read.

    Raises:
        BadRequestError: it is not UTF-8 or a part of it.
    """
    for charset in _CHARSET.findall(content_type):
        if charset.lower() not in _UTF8:
            raise BadRequestError(f"Content-Type: charset must be utf-8, got {charset}")


def read_asked(*pieces: bytes) -> Asked:
    """The model that a body asks for. A long one that came in pieces stays in them: nothing copies it.

    Raises:
        BadRequestError: the body is not a JSON object with exactly one `model`, a string.
    """
    body = b"".join(pieces) if len(pieces) > _MOST_PIECES else b""
    asked = _asked_once((body,) if body else pieces) if pieces else None
    if asked is not None:
        return asked
    body = body or b"".join(pieces)
    check_mark(body)
    content = _parsed(body)
    if not isinstance(content, dict):
        raise BadRequestError("body: must be a JSON object")
    _check(body, content)
    model = check_model(content.get("model"))
    spans = model_spans(body)
    check_once(len(spans))
    return Asked(
        model,
        (body,),
        spans[0],
        _options(content),
        answer=answer_size(content),
        prompts=max(1, prompts_in(content.get(PROMPT))),
    )


def check_mark(body: bytes) -> None:
    """Refuses a byte order mark.

    Raises:
        BadRequestError: the body begins with one.
    """
    if body.startswith(_BOM):
        raise BadRequestError("body: must not begin with a byte order mark; send plain UTF-8")


def check_controls(content: Mapping[str, Any]) -> None:
    """Refuses fields that are for engines' operators. `content`: of the top level.

    Raises:
        BadRequestError: it has one.
    """
    if not CONTROLS.isdisjoint(content) and (found := control_in(content)) is not None:
        name, advice = found
        raise BadRequestError(f"{name}: is not passed on to engines; {advice}", name)


def _check(text: bytes, content: Mapping[str, Any]) -> None:
    """Checks all but the model. `text`: JSON, `content` its values."""
    check_controls(content)
    brackets = text.count(b"[") + text.count(b"{")  # of no more than so many there is no deeper one
    if brackets > MOST_DEPTH and depth_of(text) > MOST_DEPTH:
        raise BadRequestError(TOO_DEEP)


def check_model(model: object) -> str:
    """The model's name.

    Raises:
        BadRequestError: it is none.
    """
    if not isinstance(model, str) or not model:
        raise BadRequestError("model: is required; write the name of a deployment", "model")
    return model


def check_once(times: int) -> None:
    """Refuses a body that names `model` more than once.

    Raises:
        BadRequestError: it does.
    """
    if times != 1:
        raise BadRequestError(f"model: must be given once, got it {times} times", "model")


def _asked_once(pieces: tuple[bytes, ...]) -> Asked | None:
    """What `read_asked` returns, where a look at both ends of the body finds the only key; None: look closer.

    The key that was found gets a name that no client knows: what the parser then says of that name and of `model`
    proves that it is at the top level, and alone there. A search through all of a long prompt would take longer.
    The parser gets the body without the long runs of plain characters in its strings.
    """
    number, piece = 0, pieces[0]
    key = _KEY.search(piece, 0, _ENDS)
    if key is None:
        number, piece = len(pieces) - 1, pieces[-1]
        key = _KEY.search(piece, max(0, len(piece) - _ENDS))
    if key is None:
        return None
    start, end = key.span()
    parts: list[bytes | memoryview] = []
    for other in pieces[:number]:
        parts += condensed(other, 0, len(other))
    parts += *condensed(piece, 0, start), _PLACED, *condensed(piece, end, len(piece))
    for other in pieces[number + 1 :]:
        parts += condensed(other, 0, len(other))
    text = b"".join(parts)
    try:
        content = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    value = _VALUE.match(piece, end)
    if not isinstance(content, dict) or "model" in content or value is None:
        return None
    _check(text, content)
    model = content.get(_PLACE)
    if not isinstance(model, str) or not model or LEFT_OUT in model:
        return None
    options = _options(content)
    if options and len(parts) > len(pieces) + 2 and LEFT_OUT.encode() in orjson.dumps(options):
        return None
    return Asked(
        model,
        pieces,
        value.span(1),
        options,
        number,
        answer=answer_size(content),
        prompts=max(1, prompts_in(content.get(PROMPT))),
    )


def answer_size(content: Mapping[str, Any]) -> AnswerSize:
    """How much of an answer a body asks for. Values that engines refuse count as not given."""
    stated = [one for name in MOST_TOKENS if type(one := content.get(name)) is int and one > 0]
    choices = content.get(CHOICES, 1)
    if not stated and choices == 1:
        return ANY_SIZE
    known = type(choices) is int and choices > 0
    number = min(choices, _MOST_CHOICES) if known else 1
    return AnswerSize(number, stated[0], max(stated)) if stated else AnswerSize(number)


def prompts_in(prompt: Any) -> int:
    """How many prompts are in the list that a body of `/v1/completions` may have; 0: it has one, or none."""
    # A list of numbers is one prompt, and empty texts stand where a long list was cut.
    return sum(isinstance(one, str | list) and one != "" for one in prompt) if isinstance(prompt, list) else 0


def _options(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if "stream" not in content and "stream_options" not in content:
        return NO_OPTIONS
    return {name: content[name] for name in STREAMING if name in content}


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise BadRequestError(f"body: not valid JSON: {error}") from error


def model_spans(body: bytes) -> list[tuple[int, int]]:
    """Where the values of top-level `model` keys stand, in a valid JSON object."""
    keys = [key.span() for key, _ in zip(_KEY.finditer(body), range(_MOST_KEYS + 1), strict=False)]
    if len(keys) > _MOST_KEYS:
        raise BadRequestError(f"body: has more than {_MOST_KEYS} keys named model")
    if len(keys) > 1:
        keys = at_top(body, keys)
    return [value.span(1) if (value := _VALUE.match(body, end)) else (start, end) for start, end in keys]


def at_top(body: bytes, keys: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the keys that stand at the top level: each gets a name of its own, and the parser says where it is.

    Args:
        body: a valid JSON object.
        keys: where they stand, quotes included.
    """
    parts, at = [], 0
    for number, (start, end) in enumerate(keys):
        parts += [body[at:start], orjson.dumps(f"{_PLACE}-{number}")]
        at = end
    top = _parsed(b"".join((*parts, body[at:])))
    return [span for number, span in enumerate(keys) if f"{_PLACE}-{number}" in top]
