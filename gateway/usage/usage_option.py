"""Requests token counts of streams from engines where clients did not, and hides the additional chunk. Pure.

`answer_usage.py` counts the tokens of an answer.
"""

import re
from typing import Any, Final

import orjson

from gateway.bodies.parameters import Parameters

REFUSALS: Final = frozenset({400, 422})  # statuses by which engines refuse a field that they do not know
_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_MARK: Final = b'"usage"'
_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def requests_usage(path: str, parameters: Parameters) -> bool:
    """Whether the gateway requests a stream's token counts, since its client did not and the field allows it."""
    options = parameters.stream_options
    may = options is None or (isinstance(options, dict) and options.get("include_usage") is not True)
    return may and path in _PATHS and parameters.streams


def options_with_usage(parameters: Parameters) -> dict[str, Any]:
    """The value of `stream_options` that requests token counts as well."""
    return {**(parameters.stream_options or {}), "include_usage": True}


def refuses_usage(status: int, body: bytes) -> bool:
    """Whether an engine's answer refuses the field that requests token counts: it names the field."""
    return status in REFUSALS and any(word in body for word in (b"stream_options", b"include_usage"))


def without_usage_chunk(events: bytes) -> bytes:
    """Complete events without the one that has only the token counts."""
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
