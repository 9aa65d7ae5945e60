"""Redacts the values of secrets in engines' output.

It guards against accidents, such as a server that prints its environment: a hostile program can print a secret in
another form. Values shorter than `LEAST` bytes stay, since they occur in ordinary text. Where a text is cut, parts of
values of at least that size are redacted as well.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from schemas.redaction_mark import LEAST_BYTES, MARK
from schemas.wire import StartOrder

LEAST: Final = LEAST_BYTES
MASK: Final = MARK.encode()


class Redactor:
    """The secret values of one process. Each line of a value also counts by itself."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lines = sorted({line for value in values for line in _lines_of(value)}, key=len, reverse=True)
        self._pattern = re.compile(b"(?:" + b"|".join(map(re.escape, self._lines)) + b")+") if self._lines else None
        self.longest = max(map(len, self._lines), default=0)  # bytes of a value

    def redact(self, text: bytes) -> bytes:
        """Redacts complete values."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def redact_text(self, text: str) -> str:
        return text if self._pattern is None else self.redact(text.encode()).decode(errors="replace")

    def without_tail(self, text: bytes) -> bytes:
        """Redacts the end of a value at the start of a text that starts at a cut."""
        size = self.tail_size(text)
        return MASK + text[size:] if size else text

    def tail_size(self, text: bytes) -> int:
        """Number of bytes at the start of a text that may be the end or the middle of a value."""
        return max((_tail_size(line, text) for line in self._lines), default=0)

    def without_head(self, text: bytes) -> bytes:
        """Redacts the start of a value at the end of a text that ends at a cut."""
        size = self.head_size(text)
        return text[: len(text) - size] + MASK if size >= LEAST else text

    def redact_cut(self, text: bytes) -> bytes:
        """As `redact`, for a text that is cut at both ends."""
        return self.without_head(self.without_tail(self.redact(text)))

    def spans(self, before: bytes, after: bytes) -> bool:
        """Whether a value spans the border of two texts."""
        if self._pattern is None:
            return False
        begin = before[-self.longest :]
        matches = self._pattern.finditer(begin + after[: self.longest])
        return any(match.start() < len(begin) < match.end() for match in matches)

    def head_size(self, text: bytes) -> int:
        """Number of bytes at the end of a text that may be the start of a value."""
        return max((_head_size(line, text[-len(line) + 1 :]) for line in self._lines), default=0)


class RedactedStream:
    """Redacts a text that comes in parts, also at their borders. `cut`: the start of the text may be missing."""

    def __init__(self, redactor: Redactor, *, cut: bool = False) -> None:
        self._redactor = redactor
        self._held = b""
        self._cut = cut  # the held text starts at a cut

    def feed(self, part: bytes) -> bytes:
        """The text that can be shown after this part."""
        text = self._redactor.redact(self._held + part)
        if self._cut:
            if len(text) < self._redactor.longest and b"\n" not in text:
                self._held = text
                return b""
            text, self._cut = self._redactor.without_tail(text), False
        held = self._redactor.head_size(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def seam(self, part: bytes) -> bytes:
        """As `feed`, where output may be missing before this part."""
        redactor, both, size = self._redactor, self._held + part, len(self._held)
        follows = redactor.spans(self._held, part) or redactor.head_size(both) > len(part)
        if follows or (self._cut and redactor.tail_size(both) > size):  # nothing is missing
            return self.feed(part)
        rest, self._cut = self.end(), True
        return rest + self.feed(part)

    def end(self) -> bytes:
        """The held text at the end, which may be within a value."""
        text, self._held = self._held, b""
        if self._cut:
            text, self._cut = self._redactor.without_tail(text), False
        return self._redactor.without_head(text)


def secrets_of(order: StartOrder) -> tuple[str, ...]:
    """The values of secrets in a process's environment."""
    return tuple(order.env[name] for name in order.secret_env if name in order.env)


def _lines_of(value: str) -> Iterator[bytes]:
    for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
        for line in form.splitlines():
            text = line.strip().encode(errors="surrogateescape")
            if len(text) >= LEAST:
                yield text


def _tail_size(value: bytes, text: bytes) -> int:
    """Number of bytes at the start of a text that are the end of this value; all if the text is from its middle."""
    at = value.find(text[:LEAST]) if len(text) >= LEAST else -1
    while at >= 0:
        size = min(len(value) - at, len(text))
        if value[at : at + size] == text[:size]:
            return size
        at = value.find(text[:LEAST], at + 1)
    return 0


def _head_size(value: bytes, end: bytes) -> int:
    """Number of bytes at the end of a text, which is shorter than the value, that are the value's start."""
    at = end.find(value[:LEAST])
    while at >= 0 and not value.startswith(end[at:]):
        at = end.find(value[:LEAST], at + 1)
    if at >= 0:
        return len(end) - at
    return next((size for size in range(min(LEAST - 1, len(end)), 0, -1) if value.startswith(end[-size:])), 0)
