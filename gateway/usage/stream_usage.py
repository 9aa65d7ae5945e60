"""Asks engines for the token counts of streams where clients did not, and hides the additional chunk. Pure."""

import json
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import Any, Final

import orjson

from gateway.bodies.request_body import Asked, at_top

REFUSALS: Final = frozenset({400, 422})  # statuses by which engines refuse a field that they do not know
_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_ADDED: Final = b'"stream_options":{"include_usage":true}'
_KEY: Final = re.compile(rb'("stream_options")[ \t\r\n]*:[ \t\r\n]*')
_MOST_KEYS: Final = 64  # of this name, at any depth
_MOST_OPTIONS: Final = 4096
_CHANGED_TO: Final = token_hex(16)
_CHANGED: Final = orjson.dumps(_CHANGED_TO)
TRUE: Final = frozenset({"true", "1", "1.0", "t", "on", "y", "yes"})
_MARK: Final = b'"usage"'
_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def asks_for_usage(path: str, content: Mapping[str, Any]) -> bool:
    """Whether a stream's token counts have to be asked for, since its client did not."""
    return path in _PATHS and lacks_usage(content)


def lacks_usage(content: Mapping[str, Any]) -> bool:
    """Whether a request for a stream asks for no token counts, and can be made to. `content`: of its body."""
    if not is_streamed(content):
        return False
    options = content.get("stream_options")
    return options is None or (isinstance(options, dict) and options.get("include_usage") is not True)


def refuses_usage(status: int, body: bytes) -> bool:
    """Whether an engine's answer refuses the field that asks for token counts: it names the field."""
    return status in REFUSALS and any(word in body for word in (b"stream_options", b"include_usage"))


def is_streamed(content: Mapping[str, Any]) -> bool:
    """Whether engines take a request for one of a stream: their parsers do so for some words and numbers, too."""
    value = content.get("stream")
    return value is True or (isinstance(value, str | int | float) and str(value).lower() in TRUE)


def with_usage_asked(pieces: tuple[bytes, ...], asked: Asked) -> tuple[bytes, ...] | None:
    """The body with `include_usage`, all other bytes as they were; None where it cannot be added without doubt.

    Args:
        pieces: of the body, as `asked` has it but for the model.
        asked: what it asks for; it says something of streaming.
    """
    content = asked.options
    if "stream_options" not in content:
        return with_options_added(pieces)
    options = options_with_usage(content)
    if asked.long:
        number = asked.options_piece
        return None if number is None else (*pieces[:number], options, *pieces[number + 1 :])
    body = b"".join(pieces)
    span = options_span(body)
    return None if span is None else (body[: span[0]], options, body[span[1] :])


def with_options_added(pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The body with `include_usage` behind all else. `pieces`: of a JSON object with values, but without options."""
    last = len(pieces) - 1
    while (end := pieces[last].rfind(b"}")) < 0:
        last -= 1
    piece = pieces[last]
    return (*pieces[:last], piece[:end], b",%b%b" % (_ADDED, piece[end:]), *pieces[last + 1 :])


def options_span(body: bytes) -> tuple[int, int] | None:
    """Where the value of the top-level `stream_options` stands in a JSON object; None: that is in doubt."""
    keys = [key for key, _ in zip(_KEY.finditer(body), range(_MOST_KEYS + 1), strict=False)]
    if 1 < len(keys) <= _MOST_KEYS:  # others may be in a tool's schema
        at = set(at_top(body, [key.span(1) for key in keys]))
        keys = [key for key in keys if key.span(1) in at]
    if len(keys) != 1:
        return None
    start = keys[0].end()
    text = body[start : start + _MOST_OPTIONS].decode("utf-8", "ignore")
    try:
        _, length = json.JSONDecoder().raw_decode(text)
        end = start + len(text[:length].encode())
        # The text that was found may be another object's, where the key is written with escapes.
        changed = orjson.loads(b"".join((body[:start], _CHANGED, body[end:])))
    except (ValueError, RecursionError):
        return None
    return (start, end) if changed.get("stream_options") == _CHANGED_TO else None


def options_with_usage(content: Mapping[str, Any]) -> bytes:
    """The value of `stream_options` that asks for usage as well. `content`: what the body says of streaming."""
    return orjson.dumps(dict(content["stream_options"] or {}) | {"include_usage": True})


def without_usage_chunk(events: bytes) -> bytes:
    """Whole events without the one that has the token counts and nothing else."""
    if events.find(_MARK) < 0:  # several times as fast as `in`
        return events
    kept, at = [], 0
    for blank in _BLANK.finditer(events):
        event = events[at : blank.end()]
        at = blank.end()
        if not _is_usage_alone(event):
            kept.append(event)
    kept.append(events[at:])
    return b"".join(kept)


def _is_usage_alone(event: bytes) -> bool:
    if _MARK not in event or not event.startswith(b"data:"):
        return False
    try:
        content = orjson.loads(event[5:].strip())
    except orjson.JSONDecodeError:
        return False
    return isinstance(content, dict) and content.get("choices") == [] and isinstance(content.get("usage"), dict)
