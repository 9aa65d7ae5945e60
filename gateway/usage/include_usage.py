"""Asks engines for the token counts of streams where clients did not, and hides the additional chunk. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_ADDED: Final = b'"stream_options":{"include_usage":true}'
_KEY: Final = re.compile(rb'"stream_options"[ \t\r\n]*:[ \t\r\n]*')
_MOST_OPTIONS: Final = 4096
_MARK: Final = b'"usage"'
_BLANK: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def asks_for_usage(path: str, content: Mapping[str, Any]) -> bool:
    """Whether a stream's token counts have to be asked for, since its client did not."""
    if path not in _PATHS or content.get("stream") is not True:
        return False
    options = content.get("stream_options")
    return options is None or (isinstance(options, dict) and options.get("include_usage") is not True)


def with_usage_asked(pieces: tuple[bytes, ...], content: Mapping[str, Any]) -> tuple[bytes, ...] | None:
    """The body with `include_usage`, all other bytes as they were; None where it cannot be added without doubt.

    Args:
        pieces: of the body, a JSON object.
        content: what it says of streaming; it says something.
    """
    if "stream_options" not in content:
        last = pieces[-1]
        end = last.rfind(b"}")
        before = last[: max(end, 0)].rstrip(b" \t\r\n")
        if not before:  # the object's last value is in another piece
            return with_usage_asked((b"".join(pieces),), content)
        return (*pieces[:-1], before, b",%b%b" % (_ADDED, last[end:]))
    body = b"".join(pieces)
    keys = list(_KEY.finditer(body))
    if len(keys) != 1:  # also in a message's text or in a tool's schema
        return None
    start = keys[0].end()
    text = body[start : start + _MOST_OPTIONS].decode("utf-8", "ignore")
    try:
        _, length = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    options = dict(content["stream_options"] or {}) | {"include_usage": True}
    end = start + len(text[:length].encode())
    changed = (body[:start], orjson.dumps(options), body[end:])
    # The text that was found may be another object's, where the key is written with escapes.
    return changed if orjson.loads(b"".join(changed)).get("stream_options") == options else None


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
